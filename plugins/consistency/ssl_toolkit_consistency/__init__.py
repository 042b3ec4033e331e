"""Consistency and pseudo-label methods from before FixMatch."""

from ssl_toolkit_consistency.mean_teacher import MeanTeacher
from ssl_toolkit_consistency.pi_model import PiModel
from ssl_toolkit_consistency.pseudo_label import PseudoLabel
from ssl_toolkit_consistency.uda import UDA
from ssl_toolkit_consistency.vat import VAT

__all__ = ["UDA", "VAT", "MeanTeacher", "PiModel", "PseudoLabel"]
