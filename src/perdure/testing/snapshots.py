"""Comparing what a run did with a file that is kept beside the test."""

import difflib
import os
from pathlib import Path

from perdure.testing.history import History

UPDATE = "PERDURE_UPDATE_SNAPSHOTS"


class Settings:
    """What the pytest plugin knows about the test that runs."""

    def __init__(self) -> None:
        self.folder: Path | None = None  # of the test module
        self.update = False  # with --perdure-update-snapshots


SETTINGS = Settings()


def assert_snapshot(history: History, path: str | Path, *, values: bool = False) -> None:
    """Fail with a diff unless `history.snapshot(values=values)` is the text of a file.

    `path` is relative to the folder of the test module, without pytest to the working directory. `pytest
    --perdure-update-snapshots`, or the environment variable `PERDURE_UPDATE_SNAPSHOTS=1`, writes the file instead; read
    the change before you commit it. Raises `AssertionError`, also if the file does not exist.
    """
    path = (SETTINGS.folder or Path()) / path
    found = history.snapshot(values=values)
    if SETTINGS.update or os.environ.get(UPDATE) == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, "utf-8")
        return
    if not path.exists():
        raise AssertionError(f"the snapshot {path} does not exist: run pytest --perdure-update-snapshots to write it")
    expected = path.read_text("utf-8")
    if found != expected:
        diff = difflib.unified_diff(
            expected.splitlines(), found.splitlines(), str(path), f"run {history.run_id}", lineterm=""
        )
        raise AssertionError(
            f"run {history.run_id!r} ({history.workflow}) did something else than its snapshot says; if that is meant, "
            "run pytest --perdure-update-snapshots\n" + "\n".join(diff)
        )
