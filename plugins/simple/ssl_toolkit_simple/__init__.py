"""SimPLE: similar pseudo label exploitation for semi-supervised classification."""

from ssl_toolkit_simple.algorithm import SimPLE
from ssl_toolkit_simple.pair_loss import infimal_confidence, pair_loss, pair_masks, pair_statistics

__all__ = ["SimPLE", "infimal_confidence", "pair_loss", "pair_masks", "pair_statistics"]
