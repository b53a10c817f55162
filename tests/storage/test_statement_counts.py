"""How many statements an operation on many instances needs, counted at two sizes."""

from collections import Counter
from datetime import timedelta

import pytest

from perdure.database.dialects.base import Rendered
from perdure.database.statements import Statement
from perdure.model.records import ChannelMode, ChannelWait, Lease, TimerWait, Wait
from perdure.storage.stores import SQLStorage
from perdure.testing.conformance.tools import leased


class Statements:
    """Counts the statements that a storage runs."""

    def __init__(self, storage: SQLStorage) -> None:
        self.counts: Counter[str] = Counter()
        driver = storage._backend.driver
        plain = driver.parts

        def counted(statement: Statement) -> Rendered:
            self.counts[statement.name] += 1
            return plain(statement)

        driver.parts = counted  # type: ignore[method-assign]

    def take(self) -> Counter[str]:
        counts, self.counts = self.counts, Counter()
        return counts


@pytest.mark.parametrize("used", [False, True])
async def test_statements_of_a_batch_of_suspensions_do_not_grow_with_it(storage: SQLStorage, used: bool) -> None:
    if used:
        await storage.publish_to_channel("e", b"{}")  # all that follow subscribe after this message
    statements, found = Statements(storage), list[Counter[str]]()
    for tag, count in (("a", 2), ("b", 5), ("c", 20)):  # the first stores what the others find
        leases = [await leased(storage, f"{tag}-{n}") for n in range(count)]
        items: list[tuple[Lease, list[Wait]]] = []
        for lease in leases:
            event = ChannelWait("e", "e:1", where={"id": lease.instance_id}, subscribe=ChannelMode.BROADCAST)
            own = ChannelWait(f"e:{lease.instance_id}", "e:2", subscribe=ChannelMode.DIRECT)
            items.append((lease, [event, own, TimerWait("t", "t:1", after=timedelta(hours=1))]))
        statements.take()
        answers = await storage.suspend_instances(items)
        assert all(getattr(answer, "suspended", False) for answer in answers)
        taken = statements.take()
        taken.pop("wakeups.notify", None)  # sent only so often
        found.append(taken)
    _, few, many = found
    if storage._features.round_trips:
        assert few == many
    else:  # a statement costs little, but every instance should need only those that write its own rows
        assert sum(many.values()) - sum(few.values()) == 15 * 5  # two subscriptions, two waits and a timer
