"""A new user gets a message after every mistake: no silence, no hang, and no internal names.

Set PERDURE_TEST_SNAPSHOTS=write to rewrite the snapshots, then read the difference as a stranger would.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.storage import open_storage
from tests.mistakes import bodies, calling, defining, opening, running, starting
from tests.mistakes.catalogue import MISTAKES, Mistake, entry, make, read_snapshot, snapshot, write_snapshot

GROUPS = [module.__name__.rpartition(".")[2] for module in (defining, calling, starting, opening, bodies, running)]
WRITE = os.environ.get("PERDURE_TEST_SNAPSHOTS") == "write"

INTERNAL = re.compile(
    r"\b(Body\w*|SQLStorage|Startable|StartRequest|StartOptions|Signature|WaitStep|ActivityStep|WorkflowInstance|"
    r"HistoryEvent|TimerSubscription|Recur|RunEvicted|Secret|Supervised?|Shared|Home|Codec|"
    r"_[a-z]\w*|instance(_id)?|instances|rooms?|generation|msgspec|"
    r"perdure\.(engine|storage|database|model|integrations)\.\w+)\b"
)
# The names of loggers are public, and the columns distinguish a user's own table from ours.
ALLOWED = re.compile(r"^(WARNING|ERROR) perdure\.\w+(\.\w+)?: |it has no column [\w, ]+")


@pytest.fixture(scope="module")
def written() -> Iterator[dict[str, dict[str, str]]]:
    """The entries to write, by group and title."""
    entries = {group: read_snapshot(group) for group in GROUPS}
    yield entries
    if WRITE:
        for group, texts in entries.items():
            write_snapshot(group, texts)


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the tables."""
    path = tmp_path_factory.mktemp("template") / "template.db"

    async def migrate() -> None:
        async with open_storage(f"sqlite:///{path}"):
            pass

    asyncio.run(migrate())
    return path


@pytest.fixture
def url(tmp_path: Path, migrated: Path) -> str:
    """The URL of a SQLite file of this test's own."""
    shutil.copy(migrated, tmp_path / "shop.db")
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `result()` warn soon of a run that no worker serves."""
    monkeypatch.setattr("perdure.engine.worker.stuck.WARN_SEC", 0.1)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: f"{mistake.group}: {mistake.title}")
def test_mistake_gives_the_recorded_message(
    mistake: Mistake, written: dict[str, dict[str, str]], request: pytest.FixtureRequest
) -> None:
    given = {name: request.getfixturevalue(name) for name in mistake.needs if name != "shop"}
    lines = make(mistake, given)
    assert lines, f"nothing is raised, warned of or logged after {mistake.title!r}"
    found = entry(mistake, lines)
    if WRITE:
        written[mistake.group][mistake.title] = found
    else:
        assert found == written[mistake.group].get(mistake.title)


@pytest.mark.skipif(WRITE, reason="the snapshots are being written")
@pytest.mark.parametrize("group", GROUPS)
def test_snapshot_lists_the_mistakes_of_its_group(group: str) -> None:
    assert list(read_snapshot(group)) == [each.title for each in MISTAKES if each.group == group]


@pytest.mark.skipif(WRITE, reason="the snapshots are being written")
@pytest.mark.parametrize("group", GROUPS)
def test_messages_name_nothing_internal(group: str) -> None:
    shown = [
        line.removeprefix("    > ") for line in snapshot(group).read_text("utf-8").splitlines() if "    > " in line
    ]
    assert shown
    assert not [line for line in shown if INTERNAL.search(ALLOWED.sub("", line))]


def test_catalogue_has_80_mistakes_with_unique_titles() -> None:
    assert len(MISTAKES) >= 80
    assert len({(each.group, each.title) for each in MISTAKES}) == len(MISTAKES)
