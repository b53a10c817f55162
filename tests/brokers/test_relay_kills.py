"""The short form of the rig that kills relay processes; `make relay-kills` is the long one."""

from tests.brokers.brokers import Redis
from tests.brokers.relay_kills import check, fill, run_with_kills
from tests.brokers.servers import RedisServer

EVENTS, KILLS = 600, 4


async def test_killed_relays_lose_no_event_and_keep_the_order(redis_server: RedisServer, place: str, url: str) -> None:
    broker = Redis(redis_server.url)
    await fill(url, EVENTS)
    await run_with_kills(url, broker.publisher(place), KILLS, seed=7)
    await check(url, broker, place, EVENTS)
