"""Reject images of no class: strangers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ssl_toolkit.errors import ConfigError
from ssl_toolkit.inference.model import Model
from ssl_toolkit.models.known_scores import ACCEPTED


@dataclass(frozen=True)
class Rejection:
    """Which images are rejected."""

    limit: float
    """Stranger score above which an image is rejected."""
    source: str
    """How the limit was chosen."""

    def note(self, rejected: int, images: int) -> str:
        """Return a line for the user about the images that were rejected."""
        return (
            f"{rejected} of {images} images rejected as strangers: score above {self.limit:g}, "
            f"{self.source}"
        )


def make_rejection(
    model: Model, reject: float | None, reject_above: float | None
) -> Rejection | None:
    """Return which images are rejected; None to reject none.

    Args:
        model: Model that predicts.
        reject: Share of the images of the classes that is accepted, in (0, 1]; True for
            `ACCEPTED`, None or False to reject none.
        reject_above: Limit of the stranger score, in place of `reject`; ``inf`` rejects none.

    Raises:
        ConfigError: Both are given, or one is out of range.
        ModelError: As `Model.stranger_limit`.
    """
    if reject_above is not None:
        if reject:
            raise ConfigError("--reject and --reject-above are both given; leave one out")
        if math.isnan(reject_above):
            raise ConfigError("--reject-above nan: give a number")
        model.require_stranger_scores()
        return Rejection(reject_above, "as --reject-above says")
    if reject is None or reject is False:
        return None
    share = ACCEPTED if reject is True else reject
    if not 0 < share <= 1:
        raise ConfigError(f"--reject {share:g}: give a share above 0 and at most 1, such as 0.95")
    limit = model.stranger_limit(share)
    known = model.known_scores
    assert known is not None
    source = f"which accepts {share:.4g} of {known.count} {known.images} images"
    if known.images == "unlabeled":
        source += ", and more of the classes if there were strangers among them"
    return Rejection(limit, source)
