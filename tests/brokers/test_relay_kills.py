"""The short form of the rig that kills relay processes; `make relay-kills` is the long one."""

import pytest

from tests.brokers.conftest import make_broker
from tests.brokers.relay_kills import check, fill, run_with_kills


@pytest.mark.parametrize(
    ("name", "events", "kills"), [("redis", 400, 4), ("nats", 200, 2), ("rabbitmq", 200, 2), ("kafka", 200, 2)]
)
async def test_killed_relays_lose_no_event_and_keep_the_order(
    request: pytest.FixtureRequest, place: str, url: str, name: str, events: int, kills: int
) -> None:
    broker = make_broker(request, name)
    await broker.create(place)
    await fill(url, events)
    await run_with_kills(url, broker.publisher(place), kills, seed=7)
    await check(url, broker, place, events)
