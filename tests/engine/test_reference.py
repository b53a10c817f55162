"""The engine runs on the reference, as on any storage that fulfils the contract."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from perdure import App, activity, now, sleep, workflow
from perdure.testing.reference import Reference, World
from tests.engine.reference import NOT_ON_REFERENCE
from tests.engine.waiting import waiting

SOON = timedelta(seconds=60)


@activity
async def double(number: int) -> int:
    return 2 * number


@workflow(name="reference.slept")
async def slept(number: int) -> list[object]:
    doubled = await double(number)
    await sleep(timedelta(days=1))
    return [doubled, now()]


async def test_an_app_takes_a_storage_of_any_kind() -> None:
    async with App(Reference(), workflows=[slept]) as app:
        handle = await slept.options(id="a").start(21)
        await waiting(app, "a")
        assert [step.result for step in await handle.steps()][:1] == [42]


async def test_the_clock_of_a_world_is_a_parameter() -> None:
    ahead = timedelta(0)
    world = World(lambda: datetime.now(UTC) + ahead)
    async with App(Reference(world), workflows=[slept]) as app:
        await slept.options(id="a").start(21)
        await waiting(app, "a")
    ahead = timedelta(days=2)
    async with App(Reference(world), workflows=[slept]) as app:
        doubled, woken = await app.get("a").result(SOON)
        assert doubled == 42
        assert datetime.fromisoformat(str(woken)) > datetime.now(UTC) + timedelta(days=1)


def test_the_list_of_what_cannot_run_on_the_reference_is_up_to_date() -> None:
    texts = "\n".join(path.read_text("utf-8") for path in Path(__file__).parent.rglob("test_*.py"))
    missing = [name for name in NOT_ON_REFERENCE if not re.search(rf"^async def {name}\(", texts, re.MULTILINE)]
    assert missing == []
