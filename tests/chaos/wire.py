"""Wire: connections that break, stall, fall silent in one direction, and lose the answer of a commit that happened."""

import random
from collections import Counter
from urllib.parse import urlsplit

from tests.chaos.proxy import Proxy
from tests.chaos.rigs import Outcome, Rig, Round
from tests.engine.crashes.rig.databases import own_database
from tests.engine.crashes.rig.fork_server import WorkerSpec
from tests.engine.crashes.rig.load import under_load, worked, working_again
from tests.engine.crashes.rig.load_driver import CONCURRENCY
from tests.engine.crashes.rig.worker_pool import WorkerPool
from tests.support.storages import Database

WORKERS = 3
BUSY = 15  # executions between two faults
# How long a silent server is believed to be at work. Without it a client cannot tell silence from a long statement.
SILENCE = {"postgresql": "command_timeout=2", "mysql": "read_timeout=2"}


async def play(round_: Round) -> Outcome:
    async with own_database(round_.backend, round_.folder) as database:
        return await disturb(database, round_)


async def disturb(database: Database, round_: Round, *, concurrency: int = CONCURRENCY) -> Outcome:
    """Let the wire fail as often as asked for, in each way in turn; there is always work again."""
    chance, done, again = random.Random(round_.seed), Counter[str](), [0.0]
    place = urlsplit(database.url)
    assert place.port is not None
    proxy = Proxy(place.port)
    faults = {
        "cut": proxy.cut,
        "stalled": proxy.stall,
        "half-open": proxy.half_open,
        "answers armed": proxy.lose_answers,
    }

    async def fail(crew: WorkerPool) -> None:
        while done.total() < round_.count:
            for name in chance.sample(list(faults), min(len(faults), round_.count - done.total())):
                await worked(crew, BUSY)
                await faults[name](chance)
                again.append(await working_again(crew))
                done[name] += 1

    async with proxy.listening() as port:
        netloc = place.netloc.replace(str(place.port), str(port))
        url = place._replace(netloc=netloc, query=SILENCE[round_.backend]).geturl()
        spec = WorkerSpec(url, str(round_.folder))
        checker, figures = await under_load(database, spec, chance, fail, workers=WORKERS, concurrency=concurrency)
    figures |= {**done, "answers lost": proxy.answers_lost, "work_again_max_sec": round(max(again), 2)}
    return Outcome(done.total(), checker.wrong, figures)


RIG = Rig("wire", "faults", {"postgresql": 300, "mysql": 300}, 30, play)
