"""The pytest plugin of perdure, which pytest loads by itself once perdure is installed.

It is a package of its own, because importing perdure takes longer than the start of pytest: perdure is imported only by
tests that use it. The modules `perdure.testing.plugin_…` do the work.
"""

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from perdure.testing.app import TestApp
    from perdure.testing.completion_order import CompletionOrder
    from perdure.testing.history import History

DATABASE = "the database of the fixture `perdure`, a URL (default: in memory)"
MARKS = (
    "perdure(database=None, …): the arguments of the TestApp that the fixture `perdure` opens",
    "any_order(runs=50, seed=0): execute the test often; concurrent activities complete in another order each time",
    'replay("histories/*.json", workflow=None): replay each of these recorded histories, relative to the folder of the '
    "test module, before the test; the test can take one as `history`",
    "crash_everywhere(effects=, setup=, …): execute the test once, then again with a crash at each write of its "
    "worker; takes the arguments of perdure.testing.crash_everywhere()",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("perdure")
    group.addoption("--perdure-database", metavar="URL", help=DATABASE)
    parser.addini("perdure_database", DATABASE)
    group.addoption(
        "--perdure-update-snapshots",
        action="store_true",
        help="write the snapshots of histories instead of comparing them (assert_snapshot)",
    )
    group.addoption(
        "--crash-point",
        metavar="ID",
        help="play only this crash point of tests with crash_everywhere, such as 'append_histories:7:after'",
    )


def pytest_configure(config: pytest.Config) -> None:
    for line in MARKS:
        config.addinivalue_line("markers", line)


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("crash_everywhere") is not None:
        from perdure.testing.crashes import marks

        marks.prepare(item)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("any_order") is not None:
        from perdure.testing import plugin_app

        plugin_app.generate_tests(metafunc)
    if metafunc.definition.get_closest_marker("replay") is not None:
        from perdure.testing import plugin_replay

        plugin_replay.generate_tests(metafunc)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    entered = _enter_test(item)
    yield  # the fixtures, which may import perdure
    if entered or _enter_test(item):
        from perdure.testing import plugin_app

        plugin_app.wrap_test(item)


def _enter_test(item: pytest.Item) -> bool:
    """Prepare a test, if it may use perdure; return whether it may."""
    if "perdure.testing" not in sys.modules:
        return False
    from perdure.testing import plugin_replay

    plugin_replay.enter_test(item)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    if pyfuncitem.get_closest_marker("replay") is not None:
        from perdure.testing import plugin_replay

        plugin_replay.replay_before(pyfuncitem)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.get_closest_marker("any_order") is not None:
        from perdure.testing import plugin_app

        plugin_app.add_command(item, report)
    return report


@pytest.fixture
def perdure(request: pytest.FixtureRequest) -> "TestApp":
    """A `TestApp` that is open while the test runs, in memory or on the database of `--perdure-database`."""
    from perdure.testing import plugin_app

    return plugin_app.new_app(request)


@pytest.fixture
def perdure_order(request: pytest.FixtureRequest) -> "CompletionOrder":
    """The order in which concurrent activities complete, one for each run of `@pytest.mark.any_order`."""
    order: CompletionOrder = request.param
    return order


@pytest.fixture
def history(request: pytest.FixtureRequest) -> "History":
    """A recorded history, one for each file that `@pytest.mark.replay` names."""
    from perdure.testing import plugin_replay

    return plugin_replay.load(request)
