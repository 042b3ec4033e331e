"""Log to TensorBoard."""

from ssl_toolkit_tensorboard.logger import TensorBoard

__all__ = ["TensorBoard"]
