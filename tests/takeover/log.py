"""What the activities of the rig did: one entry for each execution, with the fencing token of its worker."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from perdure import activity_info


class Broken(Exception):
    """What a failing activity raises."""


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of one attempt of a step."""

    run: str
    step: str
    what: str
    attempt: int
    token: int
    key: str  # the idempotency key

    @property
    def name(self) -> tuple[str, str, str, int]:
        """Which attempt of which step it is, whichever worker executes it."""
        return self.run, self.step, self.what, self.attempt


def _nothing() -> None:
    """Do nothing: the worker survives."""


@dataclass(slots=True)
class Log:
    """All that happened in one case. The activities and the rig share one object."""

    executions: list[Execution] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    observed: list[str] = field(default_factory=list)
    dead: dict[str, int] = field(default_factory=dict)  # tokens up to these belong to workers that have died, by run
    has_turns: bool = False  # activities wait for their turn
    waiting: dict[str, asyncio.Future[None]] = field(default_factory=dict)  # by run and step
    kill: Callable[[], None] = _nothing  # ends the worker that executes this activity

    def clear(self) -> None:
        """Forget everything, before the next case."""
        for each in (self.executions, self.notes, self.observed, self.dead, self.waiting):
            each.clear()
        self.has_turns = False
        self.kill = _nothing

    def executed(self, what: object) -> int:
        """Note an execution of the activity that calls, and return its attempt."""
        info = activity_info()
        if info.fence > self.dead.get(info.workflow_id, -1):  # a process that has died does nothing any more
            name = info.workflow_id, info.step, str(what), info.attempt
            self.executions.append(Execution(*name, info.fence, info.idempotency_key))
        return info.attempt

    async def turn(self) -> None:
        """Wait until the rig lets the activity that calls complete, if the order matters."""
        if self.has_turns:
            info = activity_info()
            turn = self.waiting[f"{info.workflow_id} {info.step}"] = asyncio.get_running_loop().create_future()
            await turn

    def count(self, note: str) -> int:
        """Add a note and return how often it was added."""
        self.notes.append(note)
        return self.notes.count(note)


LOG = Log()
