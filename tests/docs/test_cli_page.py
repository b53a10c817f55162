"""docs/cli.md: the commands of its `console` blocks run one after the other, and print what the page shows.

Times, durations, ids of workers and spaces between columns may differ. A worker runs until the end of the page. A
command is repeated until its output is that of the page, because the worker needs a moment.
"""

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cli.programs import COMMAND, environment
from tests.docs.test_blocks import ROOT, _write_files

PAGE = ROOT / "docs" / "cli.md"
WAIT_SEC = 60.0
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MASKS = (
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? (s|min|h)( \d+ (s|min))?\b"), "DURATION"),
    (re.compile(r"\S+:\d+:[0-9a-f]{8}\b"), "WORKER"),
    (re.compile(r"^(ok|warning) +sqlite$", re.MULTILINE), "sqlite"),  # depends on the version of SQLite
    (re.compile(r"\b\d+ migrations"), "N migrations"),
    (re.compile(r" +"), " "),
)
ONCE = ("migrate", "send", "publish", "init", "retry")  # they print something else when they are repeated
_EXIT = re.compile(r"\[exit code (\d+)\]\n\Z")


def shown_commands() -> Iterator[tuple[str, str, int]]:
    """Yield the commands of the page with their output and exit code."""
    for block in _BLOCK.findall(PAGE.read_text("utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = part.partition("\n")
            code = _EXIT.search(printed)
            yield command, _EXIT.sub("", printed), 0 if code is None else int(code[1])


def masked(text: str) -> str:
    for pattern, name in _MASKS:
        text = pattern.sub(name, text)
    return text


# One process runs all commands, because a new one takes as long as ten commands.
_PROGRAM = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from perdure.cli.main import run
for line in sys.stdin:
    with redirect_stdout(out := io.StringIO()), redirect_stderr(out):
        code = run(json.loads(line))
    print(json.dumps([code, out.getvalue()]), flush=True)
"""


def test_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    _write_files(PAGE, tmp_path)
    pipe = subprocess.PIPE
    about: dict[str, Any] = {"cwd": tmp_path, "env": environment(tmp_path), "text": True}
    runner = subprocess.Popen([sys.executable, "-c", _PROGRAM], stdin=pipe, stdout=pipe, **about)
    worker: subprocess.Popen[str] | None = None
    try:
        for command, printed, code in shown_commands():
            program, *arguments = shlex.split(command)
            assert program == "perdure"
            if arguments[0] == "worker":
                worker = subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.DEVNULL, **about)
            else:
                _check(runner, command, arguments, (code, masked(printed)))
    finally:
        runner.communicate(timeout=WAIT_SEC)
        assert worker is not None
        worker.terminate()
        assert worker.wait(WAIT_SEC) == 0


def _check(runner: "subprocess.Popen[str]", command: str, arguments: list[str], expected: tuple[int, str]) -> None:
    assert runner.stdin is not None
    assert runner.stdout is not None
    until = time.monotonic() + WAIT_SEC
    while True:
        runner.stdin.write(json.dumps(arguments) + "\n")
        runner.stdin.flush()
        code, text = json.loads(runner.stdout.readline())
        if (code, masked(text)) == expected:
            return
        if arguments[0] in ONCE or time.monotonic() > until:
            assert (code, masked(text)) == expected, command
        time.sleep(0.02)
