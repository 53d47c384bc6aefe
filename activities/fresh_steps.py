"""Which tool steps may run as local activities."""

from __future__ import annotations

from ..runtime.wire import RunRef

_MOST = 10_000
"""Steps remembered; of those that nobody took, e.g. because their run went on in another worker, the oldest go."""


class FreshSteps:
    """The tool steps that no worker can have died of: this process committed them, or saw their last attempt fail.

    A local activity has no heartbeat, and nobody counts the workers that it kills. So each of its attempts is made
    only by a process that knows the step to be fresh. Whoever else comes to it, after a crash, say, leaves it to an
    activity, whose attempts Temporal counts. The ledger does not depend on this: it is asked in any case.
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[str, int], None] = {}

    def add(self, run: RunRef, step: int) -> None:
        """``step`` of ``run`` is fresh."""
        self._steps[run.run_id, step] = None
        if len(self._steps) > _MOST:
            del self._steps[next(iter(self._steps))]

    def take(self, run: RunRef, step: int) -> bool:
        """Whether ``step`` is fresh; from now on it is not."""
        return self._steps.pop((run.run_id, step), False) is None
