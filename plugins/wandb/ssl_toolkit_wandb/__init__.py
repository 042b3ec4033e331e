"""Log to Weights & Biases."""

from ssl_toolkit_wandb.logger import WandB

__all__ = ["WandB"]
