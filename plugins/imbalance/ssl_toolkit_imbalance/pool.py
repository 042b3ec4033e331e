"""How often add-ons predict the pool."""

from __future__ import annotations

from ssl_toolkit import Options, TaskInfo, option


class PoolOptions(Options):
    """Options of add-ons that predict the pool."""

    updates: int = option(
        20,
        ge=1,
        help="number of times that the pool is predicted during the run",
        source="this project; USB's code: once per epoch",
    )

    def interval(self, task: TaskInfo) -> int:
        """Return the number of steps between two predictions of the pool.

        The first one is before the first step, where it has no effect, except that the cost of the
        run is estimated from it.

        Args:
            task: Properties of the task.
        """
        return max(task.max_steps // self.updates, 1)
