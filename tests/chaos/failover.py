"""Failover: the primary of a cluster is killed under load, and everybody goes on with the next."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import asyncmy
import asyncpg

from perdure.testing.servers import HOST
from tests.chaos.clusters import DATABASE, Cluster, Death
from tests.chaos.clusters_galera import GaleraCluster
from tests.chaos.clusters_patroni import PatroniCluster
from tests.chaos.rigs import Outcome, Rig, Round
from tests.engine.rig.crew import Crew
from tests.engine.rig.load import under_load, worked
from tests.engine.rig.nursery import WorkerSpec
from tests.engine.rig.places import USER, opened
from tests.servers.databases import connect_mysql, fetch_mysql
from tests.storages import Database

WORKERS, LANES = 3, 12
LEASE_SEC = 3.0  # with three servers beside the workers a heartbeat may starve on two cores
RESUME_SEC = 2.0
PRIMARY_SEC = 90.0  # until there is one again
CLUSTERS: Mapping[str, Callable[[], Cluster]] = {"patroni": PatroniCluster, "galera": GaleraCluster}
# Most are over in seconds; that a whole machine is gone is known only when its key has run out, after 20 s.
DEATHS = (Death.SERVER, Death.PROCESSES, Death.SERVER, Death.PROCESSES, Death.MACHINE)
PROBE = "rig_probe"


async def play(round_: Round) -> Outcome:
    async with started(CLUSTERS[round_.backend]()) as cluster:
        first = round_.seed % len(DEATHS)
        return await fail_over(cluster, round_, DEATHS[first:] + DEATHS[:first])


@asynccontextmanager
async def started(cluster: Cluster) -> AsyncIterator[Cluster]:
    """The cluster, while it runs."""
    await asyncio.to_thread(cluster.__enter__)
    try:
        yield cluster
    finally:
        await asyncio.to_thread(cluster.__exit__)


async def fail_over(
    cluster: Cluster, round_: Round, deaths: Sequence[Death], *, work: int = 100, lanes: int = LANES
) -> Outcome:
    """Kill one primary after the other, with so many activities in between."""
    chance, outcome = random.Random(round_.seed), Outcome(0)

    async def harm(crew: Crew) -> None:
        await crew.until_ready(WORKERS)
        while outcome.done < round_.count:
            await worked(crew, work)
            await asyncio.sleep(chance.uniform(0, 0.3))
            death = deaths[outcome.done % len(deaths)]
            times = await _replaced(cluster, crew, death)
            outcome.done += 1
            for name, took in times.items():
                outcome.figures[name] = max(outcome.figures.get(name, 0.0), round(took, 2))
            if times["resume_max_sec"] > RESUME_SEC:
                outcome.wrong.append(f"failover {outcome.done}, {death.value}: {times}")
            await asyncio.to_thread(cluster.heal)
        await worked(crew, work)

    async with opened(Database(cluster.url.partition(":")[0], cluster.url)) as database:
        storage = await database.storage()
        await storage.db().execute(f"CREATE TABLE {PROBE} (id INT PRIMARY KEY, n INT NOT NULL)")
        await storage.db().execute(f"INSERT INTO {PROBE} VALUES (1, 0)")
        spec = WorkerSpec(database.url, str(round_.folder), lease_sec=LEASE_SEC)
        checker, figures = await under_load(database, spec, chance, harm, workers=WORKERS, lanes=lanes)
    return Outcome(outcome.done, outcome.wrong + checker.wrong, figures | outcome.figures)


async def _replaced(cluster: Cluster, crew: Crew, death: Death) -> dict[str, float]:
    """Kill the primary; gives how long it took until there was another, and from then on until work went on."""
    killed = time.monotonic()
    await asyncio.to_thread(cluster.kill_primary, death)
    async with asyncio.TaskGroup() as group:
        probe = group.create_task(_first_answer(cluster))
        await asyncio.to_thread(cluster.replace)
    answered = probe.result()
    recorded = await _first_line(crew, "told.", answered)
    begun = await _first_line(crew, "begin", answered)
    return {
        "primary_max_sec": answered - killed,
        "recorded_max_sec": recorded - answered,
        "resume_max_sec": max(recorded, begun) - answered,
    }


async def _first_line(crew: Crew, what: str, since: float) -> float:
    """When an activity began, or a worker was told of a commit, for the first time since."""
    return (await crew.seen(lambda line: line.what.startswith(what) and line.at > since, "work to go on")).at


async def _first_answer(cluster: Cluster) -> float:
    """When any of the servers takes a write; asked from outside, without a line of what is being tested."""
    write = _write_postgres if cluster.url.startswith("postgresql") else _write_mysql
    answers: list[float] = []

    async def ask(port: int) -> None:
        while not answers:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncmy.errors.MySQLError):
                await write(port)
                answers.append(time.monotonic())
            await asyncio.sleep(0.02)

    async with asyncio.timeout(PRIMARY_SEC):
        await asyncio.gather(*[ask(node.port) for node in cluster.nodes])
    return answers[0]


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


RIG = Rig("failover", "failovers", {"patroni": 10, "galera": 10}, 5, play)
