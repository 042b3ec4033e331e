"""The data sets of the papers, by name."""

from ssl_toolkit_benchmarks.arrays import CIFAR10, CIFAR100, STL10, SVHN
from ssl_toolkit_benchmarks.domainnet import DomainNetReal
from ssl_toolkit_benchmarks.eurosat import EuroSAT
from ssl_toolkit_benchmarks.mini_imagenet import MiniImageNet
from ssl_toolkit_benchmarks.semi_aves import SemiAves
from ssl_toolkit_benchmarks.tissue_mnist import TissueMNIST

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "STL10",
    "SVHN",
    "DomainNetReal",
    "EuroSAT",
    "MiniImageNet",
    "SemiAves",
    "TissueMNIST",
]
