"""MixMatch and MixMatch Enhanced: pseudo labels, mixed with the true ones."""

from ssl_toolkit_mixmatch.algorithm import MixMatch, MixMatchEnhanced

__all__ = ["MixMatch", "MixMatchEnhanced"]
