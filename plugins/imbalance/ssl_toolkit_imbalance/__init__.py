"""Add-ons for pools and labels whose classes are uneven."""

from ssl_toolkit_imbalance.abc import ABC
from ssl_toolkit_imbalance.adsh import Adsh
from ssl_toolkit_imbalance.darp import DARP
from ssl_toolkit_imbalance.daso import DASO
from ssl_toolkit_imbalance.logit_adjustment import LogitAdjustment
from ssl_toolkit_imbalance.saw import SAW

__all__ = ["ABC", "DARP", "DASO", "SAW", "Adsh", "LogitAdjustment"]
