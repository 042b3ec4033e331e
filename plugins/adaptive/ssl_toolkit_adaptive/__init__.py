"""FlexMatch and FreeMatch: FixMatch with thresholds that adapt to the state of training."""

from ssl_toolkit_adaptive.flexmatch import FlexMatch
from ssl_toolkit_adaptive.freematch import FreeMatch

__all__ = ["FlexMatch", "FreeMatch"]
