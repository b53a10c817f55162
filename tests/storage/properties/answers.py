"""The results of one database so far, in a form that is comparable between databases.

Ids are described by the order in which they appeared, times by whole quanta since the sequence began, errors by their
class. Everything else is described exactly, with its type.
"""

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from perdure.errors import StorageError
from perdure.model.records import Lease

# Clocks move by even numbers of quanta, deadlines are odd numbers away: what little time a sequence really takes never
# decides. The fraction distinguishes an absolute time from a clock's.
QUANTUM = timedelta(minutes=1)
FRACTION = timedelta(microseconds=123)

BEYOND = 10**9  # an id that no database assigns

_FAR = 10**6
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00")
_MESSAGE = re.compile(r'(?<="id": )\d+')

# Which ids the fields of a record hold.
KINDS = {
    "HistoryEvent.id": "history",
    "ArchivedHistoryEvent.id": "archive",
    "ArchivedHistoryEvent.original_id": "history",
    "TimerSubscription.id": "timer",
    "CompensationEntry.id": "compensation",
    "ChannelMessage.id": "message",
    "ChannelMessage.message_id": "text",
    "ChannelSubscription.id": "subscription",
    "ChannelSubscription.cursor_message_id": "message",
    "ChannelDeliveryResult.message_id": "message",
    "PaginationResult.next_page_token": "page",
}


class Memory:
    """One database's ids, leases and page tokens in the order of their appearance."""

    def __init__(self, origin: datetime) -> None:
        self.origin = origin
        self._seen: dict[str, list[Any]] = {}
        self._leases: dict[str, list[Lease]] = {}
        self._levels: list[dict[str, int]] = []

    def begin(self) -> None:
        """A level of a transaction begins."""
        self._levels.append({kind: len(ids) for kind, ids in self._seen.items()})

    def end(self, *, undone: bool) -> None:
        """It ends; ids that were given in a level that is undone may be given again, or not."""
        known = self._levels.pop()
        if undone:
            self._seen = {kind: ids[: known.get(kind, 0)] for kind, ids in self._seen.items()}

    def at(self, quanta: int) -> datetime:
        """An absolute time."""
        return self.origin + quanta * QUANTUM + FRACTION

    def lease(self, instance_id: str, back: int) -> Lease:
        """The last lease on an instance, or one before; if there was none, a lease that never existed."""
        leases = self._leases.get(instance_id, [])
        return leases[-1 - back] if len(leases) > back else Lease(instance_id, "w1", 99, self.at(0))

    def seen(self, kind: str, n: int, otherwise: Any) -> Any:
        """One of the last ids of a kind."""
        ids = self._seen.get(kind, [])
        return ids[-1 - n % len(ids)] if ids else otherwise

    def describe(self, value: Any, kind: str = "") -> str:
        """A value in common words; what is in it is remembered."""
        if kind == "page" and value is not None:
            at, _, instance_id = value.partition("||")
            self._name(kind, value)
            return f"{self._moment(datetime.fromisoformat(at))}||{instance_id}"
        if kind and value and isinstance(value, int | str):
            return "beyond" if value == BEYOND else self._name(kind, value)
        match value:
            case datetime():
                return self._moment(value)
            case Enum():
                return str(value)
            case bytes() | str():
                return self._timeless(repr(value))
            case StorageError():
                return type(value).__name__
            case list() | tuple():
                return f"{type(value).__name__}({', '.join(self.describe(item, kind) for item in value)})"
            case Mapping():
                return f"{{{', '.join(f'{key}: {self.describe(item, kind)}' for key, item in value.items())}}}"
        if isinstance(value, Lease):
            self._leases.setdefault(value.instance_id, []).append(value)
        if is_dataclass(value):
            name = type(value).__name__
            values = {field.name: getattr(value, field.name) for field in fields(value)}
            inner = [f"{key}={self.describe(item, KINDS.get(f'{name}.{key}', ''))}" for key, item in values.items()]
            return f"{name}({', '.join(inner)})"
        return repr(value)

    def _name(self, kind: str, value: Any) -> str:
        ids = self._seen.setdefault(kind, [])
        if value not in ids:
            ids.append(value)
        return f"{kind}#{ids.index(value)}"

    def _moment(self, value: datetime) -> str:
        quanta, rest = divmod(value - self.origin, QUANTUM)
        if value.tzinfo is not UTC or abs(quanta) > _FAR:  # no time of this sequence
            return repr(value)
        return f"T{quanta}" if rest == FRACTION else f"T{quanta}+"

    def _timeless(self, text: str) -> str:
        text = _TIME.sub(lambda found: self._moment(datetime.fromisoformat(found[0])), text)
        return _MESSAGE.sub(lambda found: self.describe(int(found[0]), "message"), text)
