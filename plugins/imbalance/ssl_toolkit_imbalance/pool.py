"""How often add-ons predict the whole pool."""

from __future__ import annotations

from ssl_toolkit import TaskInfo


def steps_between(updates: int, task: TaskInfo) -> int:
    """Return the number of steps between two predictions of the pool.

    The first one is before the first step, where it has no effect, except that the cost of the run
    is estimated from it.

    Args:
        updates: Number of predictions in a run.
        task: Properties of the task.
    """
    return max(task.max_steps // updates, 1)
