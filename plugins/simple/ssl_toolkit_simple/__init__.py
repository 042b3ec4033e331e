"""SimPLE: similar pseudo label exploitation for semi-supervised classification."""

from ssl_toolkit_simple.algorithm import SimPLE
from ssl_toolkit_simple.pair_loss import pair_loss, pair_masks, pair_statistics, pair_weights

__all__ = ["SimPLE", "pair_loss", "pair_masks", "pair_statistics", "pair_weights"]
