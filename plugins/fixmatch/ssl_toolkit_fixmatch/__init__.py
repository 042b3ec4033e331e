"""FixMatch: strong views must agree with confident labels from weak views."""

from ssl_toolkit_fixmatch.algorithm import FixMatch

__all__ = ["FixMatch"]
