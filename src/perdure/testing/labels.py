"""Short texts for the steps of a history: what a step did or waited for, and how it ended."""

import json
from collections.abc import Sequence
from typing import Any

from perdure.engine.api.step_info import StepInfo, StepKind, StepStatus
from perdure.engine.history import ids
from perdure.engine.history.codec import encode
from perdure.engine.history.records import MessageReceived, WaitTimedOut, record_of
from perdure.model import names
from perdure.model.records import HistoryEvent, RegisteredWait

WAITS = frozenset({StepKind.TIMER, StepKind.EVENT, StepKind.CHANNEL, StepKind.CHILD})
_WITHOUT_OUTCOME = (StepStatus.RUNNING, StepStatus.WAITING, StepStatus.CANCELLED)


class Labels:
    """The steps of one history, and their labels."""

    def __init__(
        self, steps: Sequence[StepInfo], events: Sequence[HistoryEvent], waits: Sequence[RegisteredWait]
    ) -> None:
        self._steps = steps
        self._names: dict[str, str] = {}  # by steps, the event type or channel that they wait for
        self._children: dict[str | None, str] = {}  # by paths of steps that start children, the workflows
        for event in events:
            record = record_of(event)
            if isinstance(record, MessageReceived | WaitTimedOut) and record.channel is not None:
                self._note(record.step, record.channel)
        for wait in waits:
            if wait.channel is not None:
                self._note(ids.step_of(wait.activity_id), wait.channel)

    def _note(self, step: str, channel: str) -> None:
        name = ids.name_of(step)
        if name.startswith(ids.CHILD_END):
            self._children[ids.path_of_end(channel)] = name.removeprefix(ids.CHILD_END)
        else:
            # Without the receiver: a colon of the name itself is stored in another way (`names.stored`).
            self._names[step] = names.public(channel.partition(":")[0])

    # Steps.

    def body(self) -> list[StepInfo]:
        """Return the steps of the body, in the order of its code."""
        others = (StepKind.VALUE, StepKind.COMPENSATION, StepKind.FAILURE_HANDLER)
        return sorted((step for step in self._steps if step.kind not in others), key=lambda step: place_of(step.id))

    def compensations(self) -> list[StepInfo]:
        """Return the compensations in the order of their execution."""
        return [step for step in self._steps if step.kind is StepKind.COMPENSATION]

    def handlers(self) -> list[StepInfo]:
        """Return the step of the failure handler, if it was executed."""
        return [step for step in self._steps if step.kind is StepKind.FAILURE_HANDLER]

    def named(self, name: str) -> list[StepInfo]:
        """Return the steps of the body with this name or id."""
        return [step for step in self.body() if name in (step.id, step.name, self._what(step))]

    # Texts.

    def is_wait(self, step: StepInfo) -> bool:
        """Return whether a step waits for a time, an event, a message or a child."""
        return step.kind in WAITS

    def of(self, step: StepInfo) -> str:
        """Return what a step is, and how it ended if it did not just complete."""
        text = self._what(step)
        if step.status is StepStatus.RETRYING:
            return f"{text} (attempt {step.attempts})"
        if step.attempts > 1:
            text += f" ({step.attempts} attempts)"
        if step.status is StepStatus.FAILED:
            return text + self._failure(step)
        return f"{text} ({step.status})" if step.status in _WITHOUT_OUTCOME else text

    def outcome(self, step: StepInfo) -> str:
        """Return the result or the message of the error of a step, as a part of a line."""
        if step.error is not None:
            return f": {step.error.message}" if step.error.message else ""
        if step.status is not StepStatus.COMPLETED or step.kind in (StepKind.TIMER, StepKind.COMPENSATION):
            return ""
        return f" -> {shown(step.result)}"

    def _what(self, step: StepInfo) -> str:
        if step.kind is StepKind.CHILD:
            workflow = step.name if step.name != ids.CHILD else self._children.get(ids.path_of(step.id), "")
            return f"child {workflow}".rstrip()
        waited = self._names.get(step.id)
        return f"{step.name} {waited}" if waited and step.kind in WAITS else step.name

    def _failure(self, step: StepInfo) -> str:
        kind = step.error.type.rpartition(".")[2] if step.error is not None else ""
        return " timed out" if step.kind in (StepKind.EVENT, StepKind.CHANNEL) else f" failed: {kind}"


def place_of(id: str) -> tuple[bool, list[int]]:
    """Return where a step is in the code: the numbers of its path. Folded paths, which have none, are last."""
    parts = ids.path_of(id).split(".")
    known = all(part.isdecimal() for part in parts)
    return not known, [int(part) for part in parts] if known else []


def shown(value: Any) -> str:
    """Return a value as JSON, with the keys of objects in order."""
    return json.dumps(json.loads(encode(value)), ensure_ascii=False, sort_keys=True)
