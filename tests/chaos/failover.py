"""Failover: the primary of a cluster is killed or falls silent under load, and workers continue on the next one."""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from urllib.parse import parse_qsl, urlsplit

import asyncmy
import asyncpg

from perdure.testing.servers import HOST
from tests.chaos.clusters import DATABASE, Cluster, Death
from tests.chaos.clusters_galera import GaleraCluster
from tests.chaos.clusters_patroni import PatroniCluster
from tests.chaos.rigs import Outcome, Rig, Round
from tests.engine.crashes.rig.databases import USER, opened
from tests.engine.crashes.rig.effect_log import Line
from tests.engine.crashes.rig.fork_server import WorkerSpec
from tests.engine.crashes.rig.load import under_load, worked
from tests.engine.crashes.rig.worker_pool import WorkerPool
from tests.support.databases import connect_mysql, fetch_mysql
from tests.support.storages import Database

WORKERS, CONCURRENCY = 3, 12
LEASE_SEC = 3.0  # with three servers beside the workers a heartbeat may starve on two cores
RESUME_SEC = 2.0
PRIMARY_SEC = 90.0  # until there is one again
GIVE_UP = "command_timeout", "read_timeout"  # of the URL: how long a client waits for an answer
LEAVE_SEC = 5.0  # how long it then tries to leave the connection clean, before it throws it away
CLUSTERS: Mapping[str, Callable[[], Cluster]] = {"patroni": PatroniCluster, "galera": GaleraCluster}
# Most are over in seconds; that a whole machine is gone is known only when its key has run out, after 20 s.
DEATHS: Mapping[str, Sequence[Death]] = {
    "patroni": [Death.SERVER, Death.PROCESSES, Death.SERVER, Death.PROCESSES, Death.MACHINE, Death.SILENCE],
    "galera": [Death.SERVER, Death.SERVER, Death.SILENCE],
}
PROBE = "rig_probe"


async def play(round_: Round) -> Outcome:
    async with started(CLUSTERS[round_.backend]()) as cluster:
        deaths = DEATHS[round_.backend]
        first = round_.seed % len(deaths)
        return await fail_over(cluster, round_, [*deaths[first:], *deaths[:first]])


@asynccontextmanager
async def started(cluster: Cluster) -> AsyncIterator[Cluster]:
    """The cluster, while it runs."""
    await asyncio.to_thread(cluster.__enter__)
    try:
        yield cluster
    finally:
        await asyncio.to_thread(cluster.__exit__)


async def fail_over(
    cluster: Cluster, round_: Round, deaths: Sequence[Death], *, work: int = 100, concurrency: int = CONCURRENCY
) -> Outcome:
    """Kill one primary after the other, with so many activities in between."""
    chance, outcome = random.Random(round_.seed), Outcome(0)

    async def harm(crew: WorkerPool) -> None:
        await crew.until_ready(WORKERS)
        while outcome.done < round_.count:
            await worked(crew, work)
            await asyncio.sleep(chance.uniform(0, 0.3))
            death = deaths[outcome.done % len(deaths)]
            times = await _replaced(cluster, crew, death, chance)
            outcome.done += 1
            limits = _limits(cluster.url) if death is Death.SILENCE else {"resume_max_sec": RESUME_SEC}
            for name, took in times.items():
                outcome.figures[name] = max(outcome.figures.get(name, 0.0), round(took, 2))
            if any(times[name] > limit for name, limit in limits.items()):
                outcome.wrong.append(f"failover {outcome.done}, {death.value}: {times}, but the limits are {limits}")
            await asyncio.to_thread(cluster.heal)
        await worked(crew, work)

    async with opened(Database(cluster.url.partition(":")[0], cluster.url)) as database:
        storage = await database.storage()
        await storage.db().execute(f"CREATE TABLE {PROBE} (id INT PRIMARY KEY, n INT NOT NULL)")
        await storage.db().execute(f"INSERT INTO {PROBE} VALUES (1, 0)")
        spec = WorkerSpec(database.url, str(round_.folder), lease_sec=LEASE_SEC)
        checker, figures = await under_load(database, spec, chance, harm, workers=WORKERS, concurrency=concurrency)
    return Outcome(outcome.done, outcome.wrong + checker.wrong, figures | outcome.figures)


async def _replaced(cluster: Cluster, crew: WorkerPool, death: Death, chance: random.Random) -> dict[str, float]:
    """Kill the primary; return how long it took until there was another, and from then on until work continued."""
    killed = time.monotonic()
    await asyncio.to_thread(cluster.kill_primary, death)
    async with asyncio.TaskGroup() as group:
        probe = group.create_task(_first_answer(cluster))
        await asyncio.to_thread(cluster.replace)
    answered = probe.result()
    early = death is Death.SILENCE and chance.random() < 0.5  # while all wait for its answers; else once none does
    if early:
        await asyncio.to_thread(cluster.wake)
    recorded = await _first_line(crew, "hook.", answered)
    begun = await _first_line(crew, "begin", answered)
    if death is not Death.SILENCE:
        return {
            "primary_max_sec": answered - killed,
            "recorded_max_sec": recorded - answered,
            "resume_max_sec": max(recorded, begun) - answered,
        }
    last = max([await _first_line(crew, "hook.", answered, pid) for pid in crew.alive])
    if not early:
        await asyncio.to_thread(cluster.wake)
    given_up = max(answered, killed + _url_sec(cluster.url, *GIVE_UP))
    return {
        "silent_primary_max_sec": answered - killed,
        "silent_resume_max_sec": max(recorded, begun) - given_up,
        "silent_worker_max_sec": last - given_up,
    }


def _limits(url: str) -> dict[str, float]:
    """With a silent primary: a client leaves its old connection, asks the silent one in vain, and then the next."""
    limit = LEAVE_SEC + _url_sec(url, "connect_timeout") + RESUME_SEC
    return {"silent_resume_max_sec": limit, "silent_worker_max_sec": limit}


def _url_sec(url: str, *names: str) -> float:
    return next(float(value) for name, value in parse_qsl(urlsplit(url).query) if name in names)


async def _first_line(crew: WorkerPool, what: str, since: float, pid: int | None = None) -> float:
    """When an activity began, or a worker learned of a commit, for the first time since; of one worker, if named."""

    def fits(line: Line) -> bool:
        return line.at > since and line.what.startswith(what) and pid in (None, line.pid)

    return (await crew.seen(fits, "work to continue")).at


async def _first_answer(cluster: Cluster) -> float:
    """When any of the servers takes a write; asked from outside, without a line of what is being tested."""
    write = _write_postgres if cluster.url.startswith("postgresql") else _write_mysql
    over = asyncio.Event()

    async def ask(port: int) -> float:
        while not over.is_set():
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncmy.errors.MySQLError):
                await write(port)
                return time.monotonic()
            await asyncio.sleep(0.02)
        return math.inf

    asking = [asyncio.create_task(ask(node.port)) for node in cluster.nodes]
    try:
        answered, _ = await asyncio.wait(asking, timeout=PRIMARY_SEC, return_when=asyncio.FIRST_COMPLETED)
    finally:
        over.set()  # asyncmy may take a cancellation for an error of the connection
        for task in asking:  # a silent one would be waited for
            task.cancel()
        await asyncio.wait(asking)
    assert answered, f"no server took a write within {PRIMARY_SEC} s"
    return min(task.result() for task in answered)


async def _write_postgres(port: int) -> None:
    place = {"host": HOST, "port": port, "user": "perdure", "database": DATABASE}
    connection = await asyncpg.connect(**place, ssl=False, timeout=2)
    try:
        await connection.execute(f"UPDATE {PROBE} SET n = n + 1")
    finally:
        connection.terminate()


async def _write_mysql(port: int) -> None:
    async with asyncio.timeout(10), connect_mysql(f"mysql://{USER}@{HOST}:{port}/{DATABASE}") as connection:
        await fetch_mysql(connection, f"UPDATE {PROBE} SET n = n + 1")


RIG = Rig("failover", "failovers", {"patroni": 12, "galera": 12}, 6, play)
