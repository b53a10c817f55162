"""All crash points of the quick start and of the saga are played, and none makes a difference."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import WorkflowFailedError
from perdure.testing import crash_everywhere
from tests.support.programs import load_anew, no_other_program

README = Path(__file__).parents[3] / "README.md"
CPU_SEC = 20.0


def quick_start() -> Any:
    """The workflow of the quick start."""
    (code, *_) = re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "quick_start"}
    exec(code.partition("async def main")[0], names)
    return names["order"]


@pytest.fixture(autouse=True)
def _as_a_program() -> Iterator[None]:
    """Let each test define activities of any name, as if no other program were in this process."""
    with no_other_program():
        yield


async def test_all_crash_points_of_the_quick_start_are_played_in_time() -> None:
    order = quick_start()

    async def scenario(app: Any) -> object:
        return await (await order.options(id="order-A-1").start("A-1", 9.5)).result()

    began = time.process_time()
    report = await crash_everywhere(scenario)
    assert len(report.points) == report.total > 20
    assert not report.not_reached
    assert time.process_time() - began < CPU_SEC


async def test_all_crash_points_of_the_saga_are_played_in_time() -> None:
    saga = load_anew("examples.saga")

    async def scenario(app: Any) -> object:
        flute = await saga.order.options(id="order-1").start("Ann", "flute", 90.0)
        assert await flute.result() == "flute is on its way to Ann"
        piano = await saga.order.options(id="order-2").start("Bob", "piano", 9000.0)
        with pytest.raises(WorkflowFailedError, match="no van is large enough"):
            await piano.result()
        return (await piano.info()).status

    began = time.process_time()
    report = await crash_everywhere(scenario)
    assert len(report.points) == report.total > 100
    assert not report.not_reached
    assert time.process_time() - began < CPU_SEC
