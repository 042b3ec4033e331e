"""Weights of EfficientNet-Lite0 that an installed package contains."""

from ssl_toolkit_efficientnet_lite0.weights import packaged_weights

__all__ = ["packaged_weights"]
