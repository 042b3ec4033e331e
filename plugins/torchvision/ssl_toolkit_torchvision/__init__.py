"""The classification data sets of torchvision, by name."""

from ssl_toolkit_torchvision.dataset import TorchvisionSet

__all__ = ["TorchvisionSet"]
