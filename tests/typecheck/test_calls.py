"""mypy and pyright report every wrong call of `calls.py`, and nothing else."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CALLS = Path(__file__).with_name("calls.py")


def marked() -> set[int]:
    """The lines that have to be reported."""
    lines = CALLS.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if "# wrong: " in line}


def as_text(lines: set[int]) -> str:
    source = CALLS.read_text().splitlines()
    return "\n".join(f"{number}: {source[number - 1].strip()}" for number in sorted(lines))


def check(found: set[int], output: str) -> None:
    assert not marked() - found, f"not reported:\n{as_text(marked() - found)}"
    assert not found - marked(), f"reported, though right:\n{as_text(found - marked())}\n{output}"


def test_mypy_reports_every_wrong_call() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(CALLS)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout
    check({int(number) for number in re.findall(r"^\S+calls\.py:(\d+): error", output, re.MULTILINE)}, output)


def test_pyright_reports_every_wrong_call() -> None:
    # A configuration of its own: that of the project leaves some rules to mypy.
    options = ["--outputjson", "--pythonpath", sys.executable, "--project", str(CALLS.parent)]
    command = [sys.executable, "-m", "pyright", *options]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = json.loads(run.stdout)["generalDiagnostics"]
    errors = [each for each in found if each["severity"] == "error"]
    check({each["range"]["start"]["line"] + 1 for each in errors}, json.dumps(errors, indent=1)[:5000])
