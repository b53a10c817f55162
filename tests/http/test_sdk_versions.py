"""The tests of CloudEvents with the current version of the SDK; Edda, another package of the tests, needs version 1."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
CURRENT = Path(sys.prefix) / "cloudevents-2"  # where scripts/setup_venv.sh installs it


def test_events_are_read_by_the_current_version_of_the_sdk() -> None:
    assert version("cloudevents").startswith("1.")
    assert (CURRENT / "cloudevents" / "core").is_dir(), "run scripts/setup_venv.sh"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            "not postgresql and not mysql",
            "tests/http/test_cloud_events.py",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(CURRENT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
