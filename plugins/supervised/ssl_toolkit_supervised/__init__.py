"""Supervised training: the lower and the upper bound of a comparison."""

from ssl_toolkit_supervised.algorithm import FullySupervised, Supervised

__all__ = ["FullySupervised", "Supervised"]
