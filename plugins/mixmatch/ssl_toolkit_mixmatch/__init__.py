"""MixMatch and MixMatch Enhanced: guessed labels, mixed with the given ones."""

from ssl_toolkit_mixmatch.algorithm import MixMatch, MixMatchEnhanced

__all__ = ["MixMatch", "MixMatchEnhanced"]
