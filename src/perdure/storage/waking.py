"""Wake instances that wait: record why, set them running, and announce it."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perdure.database.operation import Operation, Work
from perdure.model.records import HistoryEventType, Lease
from perdure.storage.sql import load_statements
from perdure.storage.transactions import bounded
from perdure.storage.wakeups import RESUMABLE, Payload, Wakeups, first_of, resumable

S = load_statements("waits")

Wake = Callable[[str, str, Lease | None], Operation[str | None]]  # instance, wait, lease; returns the workflow's name


class Waking(Wakeups):
    """Wake instances, one or many."""

    async def _wake(self, wake: Wake, key: tuple[str, str], lease: Lease | None, *, single: bool = False) -> bool:
        """Wake an instance, and announce it unless its holder wakes it for itself."""
        work = Work(lambda: wake(*key, lease), single=single, repeat=lease is None)  # a holder needs the answer
        say = None if lease else lambda name: woken([key], [name])
        return await self._announce(RESUMABLE, work, say) is not None

    async def _wake_all(self, wake: Wake, keys: Sequence[tuple[str, str]]) -> list[bool]:
        """Wake many in one commit, with one announcement."""
        if not bounded(keys):
            return []
        work = Work(lambda: _each(wake, keys), repeat=True)
        return [name is not None for name in await self._announce(RESUMABLE, work, lambda names: woken(keys, names))]


def _each(wake: Wake, keys: Sequence[tuple[str, str]]) -> Operation[list[str | None]]:
    """Wake one after the other, in the order of their instances."""
    names: list[str | None] = [None] * len(keys)
    for position in sorted(range(len(keys)), key=lambda position: keys[position]):
        names[position] = yield from wake(*keys[position], None)
    return names


def woken(keys: Sequence[tuple[str, str]], names: Sequence[str | None]) -> Payload | None:
    """Return the payload for instances that were woken; those without a name were not."""
    return first_of([resumable(key[0], name) for key, name in zip(keys, names, strict=True) if name is not None])


def text(payload: Mapping[str, object]) -> str:
    """Return an event's payload as it is stored."""
    return json.dumps(payload, ensure_ascii=False)


def wake(
    instance_id: str, activity_id: str, kind: HistoryEventType, payload: str, lease: Lease | None, binary: Any = None
) -> Operation[bool]:
    """Record why an instance wakes and set it running; return False if the activity was recorded before."""
    recorded = yield S.wake(
        instance_id=instance_id,
        activity_id=activity_id,
        event_type=kind.value,
        data_type="json" if binary is None else "binary",
        event_data=payload,
        event_data_binary=binary,
        leased=int(lease is not None),
    )
    return bool(recorded)
