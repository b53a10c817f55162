"""The error for code that does not match the history of its run."""

from typing import NoReturn

from perdure.engine.history.digests import Call
from perdure.engine.history.records import MessageReceived, Record, WaitTimedOut
from perdure.engine.replay.steps import WaitStep
from perdure.errors import NonDeterminismError
from perdure.model import names
from perdure.model.matching import match_of


class Mismatch:
    """Compares what the code of a run calls with what its history records."""

    __slots__ = ("_run_id", "_workflow_name")

    def __init__(self, run_id: str, workflow_name: str) -> None:
        self._run_id = run_id
        self._workflow_name = workflow_name

    def fail(self, what: str, step: str, recorded: str, called: str, shown: object = None) -> NoReturn:
        """Raise `NonDeterminismError` for what the history has `recorded` at a step, and what the code does instead.

        `shown` has the arguments of the call, which must not appear in logs.
        """
        about, more = f"run {self._run_id!r} ({self._workflow_name}): {what}", "" if shown is None else f": {shown}"
        advice = "deploy compatible code, or guard the change with patched()"
        sides = {"step": step, "recorded": recorded, "called": called + more}
        raise NonDeterminismError(f"{about}{more}; {advice}", summary=f"{about}; {advice}", **sides)

    def check_call(self, step: str, call: Call, record: Record) -> None:
        """Raise `NonDeterminismError` if the row records the same step with different arguments."""
        if call.differs(record.call):
            what = f"the history has {step} with different arguments than the code passes now"
            self.fail(what, step, f"{step} with other arguments", "passes these arguments", call)

    def check_channel(self, wait: WaitStep, record: MessageReceived | WaitTimedOut) -> None:
        """Raise `NonDeterminismError` if the row records a message of another channel or an event of another type.

        The receiver does not count: a retried run has the events that were sent to the first one.
        """
        found, channel = record.channel, wait.channels[record.place]
        if found is None or found == channel:
            return
        known, name = names.public(found), names.public(wait.kind or channel)
        if known != name and (wait.kind is None or not known.startswith(f"{name}:")):
            what = f"the history has a message of {known!r} at {wait.id}, but the code waits for {name!r}"
            self.fail(what, wait.id, f"a message of {known!r}", f"waits for {name!r}")

    def check_match(self, wait: WaitStep, record: MessageReceived) -> None:
        """Raise `NonDeterminismError` if the recorded event was selected by a different `where`.

        Rows of earlier versions, which also recorded events that did not match, don't have this information.
        """
        if record.match is None:
            return
        if not wait.where or record.match != match_of(str(record.channel), wait.where).key:
            asked = dict(wait.where) if wait.where else "anything"
            what = f"the history has an event at {wait.id} that matched a different where= than the code passes now"
            self.fail(what, wait.id, "an event that matched another where=", "waits with this where=", asked)
