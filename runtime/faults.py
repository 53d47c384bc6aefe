"""Named moments at which a worker can be made to hang or die, to prove what survives it.

Nothing happens unless a worker is started with ``TENXGRAPH_FAULTS``, e.g.
``TENXGRAPH_FAULTS="tool.recorded/charge_card=hang"``: the moment, whose moment, and ``hang`` (wait to be
killed) or ``kill`` (SIGKILL, at once).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from .errors import SettingsError

Moment = Literal[
    "node.called",  # before the node's function
    "node.returned",  # after it, before the commit
    "tool.called",  # before the tool's function
    "tool.returned",  # after its effect, before its record
    "tool.recorded",  # after its record, before Temporal hears of it
    "commit.started",  # before the state commit
    "commit.done",  # after the state commit, before Temporal hears of it
]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Faults:
    """What to do at which moment: ``{"tool.recorded/charge_card": "hang"}``."""

    plan: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Faults:
        """Read the setting's form: ``moment/name=action``, several with commas.

        Raises:
            SettingsError: An unknown moment or action.
        """
        plan = {}
        for item in filter(None, (part.strip() for part in text.split(","))):
            where, _, action = item.partition("=")
            moment, _, name = where.partition("/")
            if moment not in get_args(Moment) or not name or action not in ("hang", "kill"):
                raise SettingsError(
                    f"TENXGRAPH_FAULTS: {item!r} is not moment/name=hang|kill; the moments are "
                    f"{', '.join(get_args(Moment))}"
                )
            plan[where] = action
        return cls(plan)

    async def reach(self, moment: Moment, name: str) -> None:
        """Do what is planned for this moment of ``name`` (a node or a tool); nothing by default."""
        if not self.plan:
            return
        action = self.plan.get(f"{moment}/{name}")
        if action is None:
            return
        logger.warning("fault point %s/%s: %s", moment, name, action)
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.Event().wait()
