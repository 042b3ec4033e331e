"""ReMixMatch."""

from ssl_toolkit_remixmatch.algorithm import ReMixMatch

__all__ = ["ReMixMatch"]
