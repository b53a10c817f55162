"""What a worker keeps in memory of a run that waits, so that it resumes without a replay.

A worker may keep a hundred thousand of these. So everything that only an executing run needs is left out and is made
again when the run resumes.
"""

from datetime import datetime

from perdure.engine.execution.recorder import Facts
from perdure.engine.replay.replayer import Replayer


class ParkedRun:
    """The body of a run that waits, and what the rows that it has seen say about the run."""

    __slots__ = ("began", "facts", "generation", "last_id", "replayer")

    def __init__(
        self, replayer: Replayer, generation: str | None, facts: Facts | None, began: datetime, last_id: int
    ) -> None:
        self.replayer = replayer
        self.generation = generation
        self.facts = facts  # None if there are none
        self.began = began  # time zero of the body's loop
        self.last_id = last_id  # the newest row that the body has seen

    def evict(self) -> None:
        """Remove the body from memory; the run itself does not end."""
        self.replayer.evict()
