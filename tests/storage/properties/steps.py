"""A step of a sequence: an operation and its arguments, the same for every database.

What only one database can know (its ids, its leases, its times) is given by reference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any

from tests.storage.properties.answers import BEYOND, Memory


class Reference:
    """Stands for a value that each database has its own of."""

    def find(self, memory: Memory) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Held(Reference):
    """The last lease on an instance, or the lease so many before it."""

    instance_id: str
    back: int = 0

    def find(self, memory: Memory) -> Any:
        return memory.lease(self.instance_id, self.back)


@dataclass(frozen=True, slots=True)
class At(Reference):
    """A time, in quanta since the sequence began."""

    quanta: int

    def find(self, memory: Memory) -> Any:
        return memory.at(self.quanta)


@dataclass(frozen=True, slots=True)
class Seen(Reference):
    """One of the ids that were given last."""

    kind: str
    n: int
    otherwise: Any = BEYOND

    def find(self, memory: Memory) -> Any:
        return memory.seen(self.kind, self.n, self.otherwise)


@dataclass(frozen=True, slots=True, repr=False)
class Step:
    """An operation to call, by one of the workers."""

    operation: str
    arguments: Mapping[str, Any]
    worker: int = 0

    def __repr__(self) -> str:
        given = ", ".join(f"{key}={brief(value)}" for key, value in self.arguments.items())
        return f"{self.worker}: {self.operation}({given})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # Hypothesis would write every field of every record
        printer.text(repr(self))


def in_turn(steps: Sequence[Step]) -> list[Step]:
    """The steps as they can be run one after the other on every database.

    While a worker has a transaction open the others only read, and must not see it. A worker that wants to write
    meanwhile would wait for its end on some databases, so there it ends.
    """
    turns: list[Step] = []
    holder, depth = 0, 0
    for step in steps:
        if depth and step.worker != holder and not is_harmless(step):
            turns += [Step("commit_transaction", {}, holder)] * depth
            depth = 0
        turns.append(step)
        if step.operation == "begin_transaction":
            holder, depth = step.worker, depth + 1
        elif step.operation in ("commit_transaction", "rollback_transaction") and step.worker == holder:
            depth = max(depth - 1, 0)
    return turns


def is_harmless(step: Step) -> bool:
    """Whether a step only reads, or is no business of the database at all."""
    return step.operation in _HARMLESS or step.operation.startswith(("list_", "find_", "next_", "iterate_"))


_HARMLESS = {
    "advance_clock",
    "notify",
    "in_transaction",
    "get_instance",
    "get_instances",
    "get_history_paginated",
    "get_history_count",
    "get_last_event",
    "get_archived_history",
    "get_compensations",
    "get_group_members",
    "get_channel_subscription",
    "get_channel_mode",
    "get_pending_channel_messages",
    "get_pending_channel_messages_for_instance",
    "get_delivery_cursor",
    "get_channel_subscribers_waiting",
}


def resolved(value: Any, memory: Memory) -> Any:
    """A value with one database's own in the place of references."""
    if isinstance(value, Reference):
        return value.find(memory)
    if isinstance(value, list | tuple):
        return type(value)(resolved(item, memory) for item in value)
    if isinstance(value, Mapping):
        return {key: resolved(item, memory) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: resolved(getattr(value, field.name), memory) for field in fields(value)})
    return value


def brief(value: Any) -> str:
    """A value as it could be written down: records without the fields they have anyway."""
    if isinstance(value, list):
        return f"[{', '.join(map(brief, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(brief, value))},)"
    if is_dataclass(value) and not isinstance(value, type):
        given = {field.name: getattr(value, field.name) for field in fields(value)}
        usual = {field.name: field.default for field in fields(value) if field.default is not MISSING}
        shown = [f"{key}={brief(item)}" for key, item in given.items() if key not in usual or usual[key] != item]
        return f"{type(value).__name__}({', '.join(shown)})"
    return repr(value)
