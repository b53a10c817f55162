"""The pytest plugin of perdure, which pytest loads by itself once perdure is installed."""

from collections.abc import Generator

import pytest

from perdure.testing import plugin_app, plugin_replay
from perdure.testing.app import TestApp
from perdure.testing.completion_order import CompletionOrder
from perdure.testing.history import History


def pytest_addoption(parser: pytest.Parser) -> None:
    plugin_app.add_options(parser)
    plugin_replay.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    plugin_app.configure(config)
    plugin_replay.configure(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    plugin_app.generate_tests(metafunc)
    plugin_replay.generate_tests(metafunc)


@pytest.hookimpl(trylast=True)  # when the fixtures are there
def pytest_runtest_setup(item: pytest.Item) -> None:
    plugin_app.wrap_test(item)
    plugin_replay.enter_test(item)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    plugin_replay.replay_before(pyfuncitem)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    plugin_app.add_command(item, report)
    return report


@pytest.fixture
def perdure(request: pytest.FixtureRequest) -> TestApp:
    """A `TestApp` that is open while the test runs, in memory or on the database of `--perdure-database`."""
    return plugin_app.new_app(request)


@pytest.fixture
def perdure_order(request: pytest.FixtureRequest) -> CompletionOrder:
    """The order in which concurrent activities complete, one for each run of `@pytest.mark.any_order`."""
    order: CompletionOrder = request.param
    return order


@pytest.fixture
def history(request: pytest.FixtureRequest) -> History:
    """A recorded history, one for each file that `@pytest.mark.replay` names."""
    return plugin_replay.load(request)
