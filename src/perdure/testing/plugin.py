"""The pytest plugin of perdure, which pytest loads by itself once perdure is installed."""

from collections.abc import Generator

import pytest

from perdure.testing import plugin_replay
from perdure.testing.history import History


def pytest_addoption(parser: pytest.Parser) -> None:
    plugin_replay.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    plugin_replay.configure(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    plugin_replay.generate_tests(metafunc)


def pytest_runtest_setup(item: pytest.Item) -> None:
    plugin_replay.enter_test(item)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    plugin_replay.replay_before(pyfuncitem)
    return (yield)


@pytest.fixture
def history(request: pytest.FixtureRequest) -> History:
    """A recorded history, one for each file that `@pytest.mark.replay` names."""
    return plugin_replay.load(request)
