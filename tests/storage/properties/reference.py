"""The reference under test: changes that the databases make by SQL are made directly in its tables."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, cast

from perdure.storage.migrations import tables
from perdure.storage.stores import SQLStorage
from perdure.testing.reference import Reference, Tables
from perdure.testing.reference.fences import claimable_at, finished_at
from perdure.testing.reference.tables import change, remove, where
from tests.storage.properties.executors import DatabaseUnderTest
from tests.storage.properties.steps import Step


class ReferenceUnderTest(DatabaseUnderTest):
    """The reference: what every database must agree with."""

    def __init__(self, workers: int) -> None:
        first = Reference()
        self.world = first.world
        sides = [first, *(Reference(self.world) for _ in range(workers - 1))]
        super().__init__("reference", cast(list[SQLStorage], sides))
        self._order: Sequence[int] = ()  # of the steps of a burst

    async def explain(self, steps: Sequence[Step], burst: Sequence[Step], seen: list[str]) -> str:
        """Nothing if the steps of a burst, in some order one after the other, would come to what was seen.

        Who never waits for a row may have passed it over, as if it had not been asked.
        """
        differences = []
        for order in _orders(burst):
            self._order = order
            answers = await self.run(steps, burst)
            if answers == seen:
                return ""
            differences.append(f"  in the order {order}: {first_difference(answers, seen)}")
        lines = [f"  {step}," for step in [*steps, *burst]]
        return "\n".join([f"no order of the last {len(burst)} explains what came of them", *differences, "of", *lines])

    async def _burst(self, steps: Sequence[Step]) -> list[Any]:
        found: list[Any] = [_PASSED_OVER.get(step.operation) for step in steps]
        for position in self._order if steps else ():
            found[position] = await self._call(steps[position])
        return found

    @property
    def _own(self) -> Reference:
        return cast(Reference, self.storage)

    async def _origin(self) -> datetime:
        return datetime.now(UTC)

    async def _full(self) -> list[str]:
        known = {each.name for each in fields(Tables)}
        return [table for table in tables("sqlite") if table in known]

    async def _empty(self) -> None:
        self.world.tables = Tables()

    async def _pause(self) -> None:
        return

    async def _rows(self, table: str) -> list[dict[str, Any]]:
        rows = [dict(row) for row in getattr(self.world.tables, table).values()]
        if table == "workflow_instances":
            return [{**row, "claimable_at": claimable_at(row), "finished_at": finished_at(row)} for row in rows]
        if table == "perdure_waits":  # the key stands for the values
            return [{name: value for name, value in row.items() if name != "where"} for row in rows]
        return [row for row in rows if self._matters(table, row)]

    def _matters(self, table: str, row: dict[str, Any]) -> bool:
        """The same rows as in the databases."""
        if table == "perdure_outbox_sources":
            events = self.world.tables.outbox_events.values()
            waiting = {each["event_source"] for each in events if each["status"] in ("pending", "processing")}
            return row["event_source"] in waiting
        return table != "perdure_outbox_sequences" and (table != "perdure_channels" or row["dirty_at"] is not None)

    async def own_sql(self, query: str) -> object:
        return len(getattr(self._own._tables, query.removeprefix("SELECT count(*) FROM ")))

    async def own_write(self, statement: str) -> int:
        async with self.storage.transaction():
            return OWN_WRITES[statement](self._own._tables)


# Operations that skip a row that another transaction has locked, and what they return then.
_PASSED_OVER = {
    "try_acquire_lock": None,
    "try_acquire_system_lock": None,
    "deliver_channel_message": None,
    "deliver_channel_message_with_lock": None,
    "fire_timer": False,
    "expire_channel_wait": False,
}


def _orders(steps: Sequence[Step]) -> Iterator[tuple[int, ...]]:
    """Every order of all steps, then of those without some that may have been skipped."""
    free = [position for position, step in enumerate(steps) if step.operation in _PASSED_OVER]
    for count in range(len(free) + 1):
        for missing in itertools.combinations(free, count):
            yield from itertools.permutations(position for position in range(len(steps)) if position not in missing)


def first_difference(answers: Sequence[str], seen: Sequence[str]) -> str:
    """Where two lists of answers part."""
    for expected, found in itertools.zip_longest(answers, seen, fillvalue="nothing"):
        if expected != found:
            return f"expected {expected}, found {found}"
    return ""


def _rename(found: Tables) -> int:
    running = where(found.workflow_instances, status="running")
    for instance_id in running:
        change(found.workflow_instances, instance_id, owner_service="own")
    return len(running)


def _disown_instance(found: Tables) -> int:
    known = "Pay:1" in found.workflow_instances
    if known:
        change(found.workflow_instances, "Pay:1", framework="python")
    return int(known)


def _disown_messages(found: Tables) -> int:
    for number in found.channel_messages:
        change(found.channel_messages, number, framework=None)
    return len(found.channel_messages)


def _disown_subscriptions(found: Tables) -> int:
    for key in found.channel_subscriptions:
        change(found.channel_subscriptions, key, framework=None, cursor_message_id=None)
    return len(found.channel_subscriptions)


def _disown_event(found: Tables) -> int:
    known = "e1" in found.outbox_events
    if known:
        change(found.outbox_events, "e1", sequence=None)
    return int(known)


# What the statements of the same name do.
OWN_WRITES: Mapping[str, Callable[[Tables], int]] = {
    "UPDATE workflow_instances SET owner_service = 'own', updated_at = updated_at WHERE status = 'running'": _rename,
    "UPDATE workflow_instances SET framework = 'python', updated_at = updated_at WHERE instance_id = 'Pay:1'": (
        _disown_instance
    ),
    "UPDATE channel_messages SET framework = NULL": _disown_messages,
    "UPDATE channel_subscriptions SET framework = NULL, cursor_message_id = NULL": _disown_subscriptions,
    "UPDATE outbox_events SET sequence = NULL WHERE event_id = 'e1'": _disown_event,
    "DELETE FROM system_locks": lambda found: remove(found.system_locks, list(found.system_locks)),
}
