"""ReMixMatch, and CTAugment, its augmentation."""

from ssl_toolkit_remixmatch.algorithm import ReMixMatch
from ssl_toolkit_remixmatch.ctaugment import CTAugment

__all__ = ["CTAugment", "ReMixMatch"]
