"""Wide residual networks for small images."""

from ssl_toolkit_wide_resnet.backbone import WideResNet

__all__ = ["WideResNet"]
