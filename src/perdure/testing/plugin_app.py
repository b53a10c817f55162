"""What the pytest plugin does for test Apps: the fixture `perdure`, and the marks `perdure` and `any_order`.

The plugin (`pytest_perdure`) calls these functions from its hooks. An async test is wrapped, so that its App is opened
and closed in the test's own event loop, whichever plugin runs it.
"""

import asyncio
import inspect
import shlex
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import wraps
from typing import Any

import pytest

from perdure.testing.app import TestApp
from perdure.testing.completion_order import RUNS, CompletionOrder, completing_in

DATABASE = "perdure_database"
ORDER = "perdure_order"


def generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each order that an `any_order` mark asks for; for `pytest_generate_tests`."""
    mark = metafunc.definition.get_closest_marker("any_order")
    if mark is None:
        return
    orders = _orders(*mark.args, **mark.kwargs)
    if ORDER not in metafunc.fixturenames:
        metafunc.fixturenames.append(ORDER)
    metafunc.parametrize(ORDER, orders, indirect=True, ids=[f"order{each.seed}" for each in orders])


def _orders(runs: int = RUNS, seed: int = 0) -> list[CompletionOrder]:
    if not isinstance(runs, int) or runs < 1:
        raise pytest.UsageError(f"@pytest.mark.any_order(runs=) must be a number of at least 1, not {runs!r}")
    return [CompletionOrder(each) for each in range(seed, seed + runs)]


def new_app(request: pytest.FixtureRequest) -> TestApp:
    """Return the App of a test, which is opened when the test begins; for the fixture `perdure`."""
    if not inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        pytest.fail("the fixture `perdure` is for async tests: use `async def`", pytrace=False)
    mark = request.node.get_closest_marker("perdure")
    given: dict[str, Any] = dict(mark.kwargs) if mark is not None else {}
    if mark is not None and mark.args:
        given["database"] = mark.args[0]
    if "database" not in given:
        given["database"] = request.config.getoption(DATABASE) or request.config.getini(DATABASE) or None
    return TestApp(**given)


def wrap_test(item: pytest.Item) -> None:
    """Let a test open its App when it begins, and close it when it ends; for `pytest_runtest_setup`."""
    if not isinstance(item, pytest.Function):
        return
    app, order = item.funcargs.get("perdure"), _order_of(item)
    if isinstance(app, TestApp):
        item.obj = _wrapped(item.obj, app, order)
    elif order is not None:
        if not inspect.iscoroutinefunction(item.obj):
            pytest.fail("@pytest.mark.any_order is for async tests: use `async def`", pytrace=False)
        item.obj = _wrapped(item.obj, None, order)


def _order_of(item: pytest.Item) -> CompletionOrder | None:
    """Return the order of a test with `any_order`. The test need not take it as a fixture."""
    callspec = getattr(item, "callspec", None)
    order = None if callspec is None else callspec.params.get(ORDER)
    return order if isinstance(order, CompletionOrder) else None


def _wrapped(
    test: Callable[..., Awaitable[Any]], app: TestApp | None, order: CompletionOrder | None
) -> Callable[..., Awaitable[Any]]:
    @wraps(test)
    async def run(*args: Any, **kwargs: Any) -> Any:
        async with AsyncExitStack() as opened:
            if order is not None:
                opened.enter_context(completing_in(order))
            if app is not None:
                _check_loop()
                await opened.enter_async_context(app)
            return await test(*args, **kwargs)

    return run


def _check_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pytest.fail("the fixture `perdure` needs asyncio: with anyio, let `anyio_backend` return 'asyncio'")


def add_command(item: pytest.Item, report: pytest.TestReport) -> None:
    """Add the command that repeats the order of a failed test; for `pytest_runtest_makereport`."""
    if report.failed and _order_of(item) is not None:
        report.sections.append(("repeat this order of completions", f"pytest {shlex.quote(item.nodeid)}"))
