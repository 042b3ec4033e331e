"""Small data sets of handwritten digits, for trying the toolkit out."""

from ssl_toolkit_digits.datasets import Digits, Mnist5k

__all__ = ["Digits", "Mnist5k"]
