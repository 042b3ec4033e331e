"""Choose the score that ranks the rows of a comparison, in every table, page and message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ssl_toolkit.comparisons.schema import Variant
from ssl_toolkit.runs.scoring import uneven_text
from ssl_toolkit.runs.summary import RunSummary


def leaders(rows: Sequence[Variant], score: str) -> list[Variant]:
    """Return the rows with the highest mean of a score, without upper bounds if there are others.

    Args:
        rows: At least one.
        score: Name of a score that all of them have.
    """
    competing = [row for row in rows if not row.uses_hidden_labels] or rows
    # Rounded, so that means which are equal but for their last bits are equal.
    means = [round(row.scores[score].mean, 12) for row in competing]
    return [row for row, mean in zip(competing, means, strict=True) if mean == max(means)]


def ranking(summaries: Iterable[RunSummary]) -> tuple[str, str]:
    """Return the name of the score that ranks, and the reason if it is a balanced accuracy.

    It is a score on the test images, or on the validation images if no run has test images: the
    balanced accuracy where the classes are uneven, else the accuracy; the mean average precision
    under ``--task multilabel``. Runs of a recipe are ranked
    by the accuracy, as the published table is.

    Args:
        summaries: Of the completed runs.
    """
    runs = [*summaries]
    if several := [run.multilabel for run in runs if run.multilabel is not None]:
        return ("test.map" if any(one.test for one in several) else "validation.map"), ""
    part = "test" if not runs or any(run.test for run in runs) else "validation"
    scores = [of_part for run in runs if (of_part := getattr(run, part)) is not None]
    uneven = next((of_part for of_part in scores if of_part.uneven), None)
    if uneven is None or any(run.recipe for run in runs):
        return f"{part}.accuracy", ""
    counts = uneven_text(score.count for score in uneven.per_class.values())
    return (
        f"{part}.balanced_accuracy",
        f"ranked by the balanced accuracy, the mean of the accuracies of the classes, because in "
        f"the {part} images {counts}",
    )
