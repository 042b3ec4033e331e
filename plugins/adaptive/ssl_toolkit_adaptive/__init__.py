"""FixMatch with thresholds, weights or logits that adapt to the state of training."""

from ssl_toolkit_adaptive.adamatch import AdaMatch
from ssl_toolkit_adaptive.dash import Dash
from ssl_toolkit_adaptive.debiaspl import DebiasPL
from ssl_toolkit_adaptive.defixmatch import DeFixMatch
from ssl_toolkit_adaptive.flexmatch import FlexMatch
from ssl_toolkit_adaptive.freematch import FreeMatch
from ssl_toolkit_adaptive.softmatch import SoftMatch

__all__ = ["AdaMatch", "Dash", "DeFixMatch", "DebiasPL", "FlexMatch", "FreeMatch", "SoftMatch"]
