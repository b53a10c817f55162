"""import-linter reports an import that points the wrong way."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import perdure

ROOT = Path(__file__).parents[2]
PROGRAM = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(config_filename='pyproject.toml'))"


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("model/limits.py", "perdure.storage.contract"),
        ("database/operation.py", "perdure.storage.contract"),
        ("storage/locks.py", "perdure.engine.starting"),
        ("engine/history/ids.py", "perdure.engine.replay.loop"),
        ("engine/replay/body.py", "perdure.storage.contract"),
        ("engine/execution/run.py", "perdure.engine.worker.worker"),
        ("engine/worker/worker.py", "perdure.storage.stores"),
        ("engine/api/app.py", "perdure.integrations.connections"),
        ("engine/api/client.py", "perdure.http.app"),
        ("http/runs.py", "perdure.dashboard.app"),
        ("views/why.py", "perdure.http.app"),
        ("testing/reference/locks.py", "perdure.storage.locks"),
        ("inspection/filters.py", "perdure.testing.history"),
        ("testing/history.py", "perdure.cli.exits"),
    ],
)
def test_import_that_points_the_wrong_way_is_reported(tmp_path: Path, module: str, forbidden: str) -> None:
    package = tmp_path / "src" / "perdure"
    shutil.copytree(Path(perdure.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "*.sql"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    changed = package / module
    changed.write_text(changed.read_text("utf-8") + f"\nimport {forbidden}\n", "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"-> {forbidden}" in done.stdout
