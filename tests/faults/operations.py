"""Every operation of the storage contract: what must be there before it, and the call.

A function is named after its operation, with a word after two underscores where there are several ways; it seeds and
returns the call. They stand in `instance_operations`, `message_operations` and `other_operations`.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta

from perdure.model.records import ChannelMessage, ChannelMode, HistoryEvent, Lease
from perdure.storage.stores import SQLStorage
from tests.storage.plans.operations import Stage
from tests.storage.plans.statement_costs import Meter

DAY = timedelta(days=1)
MANY = 3
OLD = "'2020-01-01 00:00:00.000000'"

Act = Callable[[SQLStorage], Awaitable[object]]
Scenario = Callable[[Stage], Awaitable[Act]]
OPERATIONS: dict[str, Scenario] = {}


def stage(storage: SQLStorage) -> Stage:
    """Subjects that have the same names in every run."""
    made = Stage(storage, Meter())
    made.tag = 0
    return made


def operation(scenario: Scenario) -> Scenario:
    """Part of the enumeration."""
    OPERATIONS[scenario.__name__] = scenario
    return scenario


async def some_leases(on: Stage) -> list[Lease]:
    return [await on.leased() for _ in range(MANY)]


def event_of(lease: Lease) -> HistoryEvent:
    return HistoryEvent(lease.instance_id, "step:1", "ActivityCompleted", b"{}")


async def subscribed(on: Stage, channel: str, mode: ChannelMode) -> Lease:
    lease = await on.leased()
    await on.storage.subscribe_to_channel(lease.instance_id, channel, mode, lease=lease)
    return lease


async def published(on: Stage, channel: str) -> ChannelMessage:
    await on.storage.publish_to_channel(channel, b"{}")
    (message,) = await on.storage.get_pending_channel_messages(channel)
    return message
