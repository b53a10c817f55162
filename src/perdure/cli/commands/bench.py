"""`perdure bench`: a short measurement in a scratch schema, database or file, which is removed afterwards."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from secrets import token_hex
from statistics import median
from typing import Annotated
from urllib.parse import parse_qsl, urlencode, urlsplit

from cyclopts import Parameter

from perdure.cli.exits import CommandError, UsageError
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Output
from perdure.cli.settings import database_url
from perdure.database.dialects import new_driver
from perdure.database.secret import Secret
from perdure.engine.api.activity import activity
from perdure.engine.api.app import App
from perdure.engine.api.workflow import workflow
from perdure.inspection.documents import Document
from perdure.storage.stores import connected, sqlite_path

SINGLE = 20  # runs that are measured one after the other
LIMIT_SEC = 300.0


@activity(name="perdure.bench.step")
async def nothing(number: int) -> int:
    """Do nothing."""
    return number


@workflow(name="perdure.bench")
async def work(steps: int) -> int:
    """Execute steps one after the other."""
    for number in range(steps):
        await nothing(number)
    return steps


async def bench(
    *,
    runs: Annotated[int, Parameter(help="Number of runs.")] = 200,
    steps: Annotated[int, Parameter(help="Steps of each run.")] = 5,
    common: Common = COMMON,
) -> None:
    """Measure runs and steps per second, and the time of a single run. Existing tables are not touched."""
    if runs < 1 or steps < 1:
        raise UsageError("--runs and --steps must be at least 1")
    try:
        async with scratch(database_url(common)) as url:
            document = {"dialect": new_driver(url).name, **await _measure(url, runs, steps)}
    except TimeoutError:
        raise CommandError(f"the runs have not ended after {LIMIT_SEC:.0f} s: use fewer --runs") from None
    Output(common).single(document, lambda: _text(document))


async def _measure(url: str, runs: int, steps: int) -> Document:
    async with App(url, workflows=[work]), asyncio.timeout(LIMIT_SEC):
        await work(1)  # connections and statements are prepared
        began = time.perf_counter()
        handles = await asyncio.gather(*(work.start(steps) for _ in range(runs)))
        started = time.perf_counter()
        await asyncio.gather(*(handle.result() for handle in handles))
        ended = time.perf_counter()
        single: list[float] = []
        for _ in range(SINGLE):
            before = time.perf_counter()
            await work(1)
            single.append(time.perf_counter() - before)
    return {
        "runs": runs,
        "steps": steps,
        "starts_per_sec": round(runs / (started - began), 1),
        "runs_per_sec": round(runs / (ended - began), 1),
        "steps_per_sec": round(runs * steps / (ended - began), 1),
        "single_run_median_ms": round(1000 * median(single), 2),
        "single_run_max_ms": round(1000 * max(single), 2),
    }


def _text(found: Document) -> str:
    return (
        f"{found['runs']} runs of {found['steps']} steps on {found['dialect']}: {found['runs_per_sec']:,.0f} runs/s, "
        f"{found['steps_per_sec']:,.0f} steps/s (starts alone: {found['starts_per_sec']:,.0f}/s)\n"
        f"a run of one step, start to result: median {found['single_run_median_ms']:g} ms, maximum "
        f"{found['single_run_max_ms']:g} ms of {SINGLE}\n"
        "One process was client and worker, its steps do nothing, and other load on this machine counts: compare only "
        "with measurements of the same kind. docs/performance.md has more."
    )


# A place of its own.


@asynccontextmanager
async def scratch(url: Secret) -> AsyncIterator[str]:
    """Yield the URL of a new schema, database or file beside the given one, and remove it afterwards."""
    name = f"perdure_bench_{token_hex(4)}"
    match new_driver(url).name:
        case "sqlite":
            place = _file(url, name)
        case "postgresql":
            place = _schema(url, name)
        case _:
            place = _database(url, name)
    async with place as made:
        yield made


@asynccontextmanager
async def _file(url: Secret, name: str) -> AsyncIterator[str]:
    path = f"{os.path.dirname(sqlite_path(url)) or '.'}/{name}.db"
    try:
        yield f"sqlite:///{path}"
    finally:
        for suffix in ("", "-wal", "-shm", "-turn", "-gate"):
            with suppress(FileNotFoundError):
                os.remove(f"{path}{suffix}")


@asynccontextmanager
async def _schema(url: Secret, name: str) -> AsyncIterator[str]:
    base, _, query = url.partition("?")
    options = [(key, value) for key, value in parse_qsl(query) if key != "schema"]
    try:
        yield Secret(f"{base}?{urlencode([*options, ('schema', name)])}")
    finally:
        async with connected(url) as database:
            await database.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@asynccontextmanager
async def _database(url: Secret, name: str) -> AsyncIterator[str]:
    async with connected(url) as database:
        await database.execute(f"CREATE DATABASE {name}")
    try:
        yield Secret(urlsplit(url)._replace(path=f"/{name}").geturl())
    finally:
        async with connected(url) as database:
            await database.execute(f"DROP DATABASE {name}")
