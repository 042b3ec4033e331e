"""FixMatch: strong views must agree with confident labels from weak views; OpenMatch."""

from ssl_toolkit_fixmatch.algorithm import FixMatch
from ssl_toolkit_fixmatch.openmatch import OpenMatch

__all__ = ["FixMatch", "OpenMatch"]
