"""What the pytest plugin does for histories: `@pytest.mark.replay`, and the option that writes snapshots.

The plugin (`pytest_perdure`) calls these functions from its hooks.
"""

from pathlib import Path

import pytest

from perdure.engine.replay.definitions import WORKFLOWS, WorkflowDefinition
from perdure.testing.history import History
from perdure.testing.replaying import replay
from perdure.testing.snapshots import SETTINGS

MARK, FIXTURE = "replay", "history"


def generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test for each file that a `replay` mark names; for `pytest_generate_tests`."""
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None:
        return
    folder, patterns = metafunc.definition.path.parent, mark.args
    paths = sorted({path for pattern in patterns for path in folder.glob(pattern)})
    if not paths:
        raise pytest.Collector.CollectError(
            f"{metafunc.definition.nodeid}: no file matches {', '.join(map(repr, patterns)) or 'nothing'} in {folder}, "
            "so this test would check nothing: export a history there, or correct the pattern of @pytest.mark.replay"
        )
    if FIXTURE not in metafunc.fixturenames:
        metafunc.fixturenames.append(FIXTURE)
    metafunc.parametrize(FIXTURE, paths, indirect=True, ids=[_name(path, folder) for path in paths])


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.name


def load(request: pytest.FixtureRequest) -> History:
    """Return the history of a parametrized test; for the fixture `history`."""
    path = getattr(request, "param", None)
    if not isinstance(path, Path):
        raise pytest.UsageError("the fixture `history` is for tests with @pytest.mark.replay: add the mark")
    return History.load(path)


def replay_before(item: pytest.Function) -> None:
    """Replay the history of a test; for `pytest_pyfunc_call`, so that a difference is a failure of the test."""
    mark = item.get_closest_marker(MARK)
    if mark is None:
        return
    history = item.funcargs.get(FIXTURE)
    if not isinstance(history, History):  # a test that does not take it
        history = History.load(item.callspec.params[FIXTURE])  # type: ignore[arg-type]
    workflow = mark.kwargs.get("workflow") or WORKFLOWS.get(history.workflow)
    if not isinstance(workflow, WorkflowDefinition):
        pytest.fail(
            f"workflow {history.workflow!r} is not defined in this process: import its module in the test, or pass "
            "workflow= to @pytest.mark.replay",
            pytrace=False,
        )
    replay(workflow, history)


def enter_test(item: pytest.Item) -> None:
    """Note where a test is, for paths of snapshots, and the options; for `pytest_runtest_setup`."""
    SETTINGS.folder = item.path.parent
    SETTINGS.update = bool(item.config.getoption("perdure_update_snapshots", False))
