"""Requests that schemathesis makes from the API's own description, in short; `make fuzz-http` sends many more."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_made_up_requests_cause_no_server_error_and_are_answered_as_described() -> None:
    """In a process of its own, because the API offers all workflows of a process, and a test process has hundreds."""
    options = ["--database", "sqlite", "--requests", "150", "--examples", "4"]
    command = [sys.executable, "-m", "tests.http.fuzzing", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"sqlite: (\d+) requests to (\d+) operations in \d+ s, no failure \((.*)\)", done.stdout)
    assert found is not None, done.stdout
    assert int(found[1]) >= 150
    assert int(found[2]) > 20
    assert {"200", "202", "404", "422"} <= set(re.findall(r"(\d+): ", found[3]))
