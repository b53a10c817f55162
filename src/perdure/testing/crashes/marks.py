"""What the pytest plugin does for `@pytest.mark.crash_everywhere` and the option `--crash-point`."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from perdure.testing.crashes import everywhere

MARK = "crash_everywhere"
FIXTURE = "perdure"  # the app, which is another one in each play


def prepare(item: pytest.Item) -> None:
    """Let a marked test be the scenario of `crash_everywhere()`; for `pytest_itemcollected`."""
    mark = item.get_closest_marker(MARK)
    if mark is None or not isinstance(item, pytest.Function):
        return
    test = item.obj
    if mark.args or not inspect.iscoroutinefunction(test) or FIXTURE not in inspect.signature(test).parameters:
        raise pytest.UsageError(
            f"{item.nodeid} is marked with {MARK}, so it must be an async function that takes the fixture {FIXTURE!r}, "
            "and the arguments of the mark must be named"
        )
    everywhere.DEFAULTS.point = item.config.getoption("--crash-point")
    everywhere.DEFAULTS.progress = True if item.config.getoption("capture") == "no" else None
    item.obj = _everywhere(test, mark.kwargs)


def _everywhere(test: Callable[..., Awaitable[object]], options: Mapping[str, Any]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def play(**fixtures: Any) -> None:
        async def scenario(app: object) -> object:
            return await test(**{**fixtures, FIXTURE: app})

        await everywhere.crash_everywhere(scenario, **options)

    return play
