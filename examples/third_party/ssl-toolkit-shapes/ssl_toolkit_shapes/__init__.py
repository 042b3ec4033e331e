"""Rendered shapes, and small convolutional networks for them."""

from ssl_toolkit_shapes.backbone import Conv4
from ssl_toolkit_shapes.dataset import Shapes

__all__ = ["Conv4", "Shapes"]
