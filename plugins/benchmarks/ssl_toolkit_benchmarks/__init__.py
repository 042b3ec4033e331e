"""The data sets of the papers, by name."""

from ssl_toolkit_benchmarks.arrays import CIFAR10, CIFAR100, STL10, SVHN
from ssl_toolkit_benchmarks.domainnet import DomainNetReal
from ssl_toolkit_benchmarks.mini_imagenet import MiniImageNet

__all__ = ["CIFAR10", "CIFAR100", "STL10", "SVHN", "DomainNetReal", "MiniImageNet"]
