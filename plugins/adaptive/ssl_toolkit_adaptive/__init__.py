"""FixMatch with thresholds, weights or logits that adapt to the state of training."""

from ssl_toolkit_adaptive.debiaspl import DebiasPL
from ssl_toolkit_adaptive.flexmatch import FlexMatch
from ssl_toolkit_adaptive.freematch import FreeMatch
from ssl_toolkit_adaptive.softmatch import SoftMatch

__all__ = ["DebiasPL", "FlexMatch", "FreeMatch", "SoftMatch"]
