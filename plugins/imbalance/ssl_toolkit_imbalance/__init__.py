"""Add-ons for pools and labels whose classes are uneven."""

from ssl_toolkit_imbalance.logit_adjustment import LogitAdjustment

__all__ = ["LogitAdjustment"]
