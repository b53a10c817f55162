"""A page as a session: its files are written and the commands of its `console` blocks run, one after the other.

The output of each command has to be the one that the page shows; `masked` says what may differ. A command of `perdure`
is repeated until its output is that of the page, because a worker needs a moment, unless it changes something. One that
did not find its run or workflow has changed nothing.

A command that ends in `&` runs until the page kills it (`kill -9 %1`, `kill %1`, `kill $!` for the last one; also after
another command and `&&`) or ends.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import pytest

from perdure.cli.exits import NOT_FOUND
from tests.cli.programs import environment

WAIT_SEC = 60.0
PLUGINS = "-p pytest_asyncio.plugin -p pytest_perdure -p no:cacheprovider"
CHANGES = (
    "migrate up",
    "start",
    "send",
    "publish",
    "init",
    "retry",
    "cancel",
    "copy",
)  # they print something else when repeated

_PART = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"(?:#|--) (\S+\.(?:py|toml|yaml|service|sql))\n")
_EXIT = re.compile(r"\[exit code (\d+)\]\n\Z")
_MASKS = (
    # a warning of `--wait` on a machine where a worker takes more than five seconds to start
    (re.compile(r"^run \S+ \(\w+\) has not ended after .*, and no live worker serves its workflow: .*\n", re.M), ""),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?"), "TIME"),
    (re.compile(r"(sqlite:///|\.\.\.)\S*/"), "FOLDER/"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "CHECKSUM"),
    (re.compile(r"\b\d+(\.\d+)? ?(s|min|h|d)( \d+ (s|min))?\b"), "DURATION"),
    (re.compile(r"\S+:\d+:[0-9a-f]{8}\b"), "WORKER"),
    (re.compile(r"\b\d+:(?=timer\b)"), "N:"),  # a message that comes before its wait lets the wait set no timer
    (re.compile(r"^(ok|warning) +sqlite$", re.MULTILINE), "sqlite"),  # depends on the version of SQLite
    (re.compile(r"\b\d+ migrations"), "N migrations"),
    (re.compile(r"^perdure \d+\.\d+\.\d+\S*$", re.MULTILINE), "VERSION"),
    (re.compile(r"\d+\.\d+s\b"), "DURATION"),
    (re.compile(r"═+|=+"), "="),
    (re.compile(r" +"), " "),
)

# One process runs all commands of `perdure`, because a new one takes as long as ten commands.
_PERDURE = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from perdure.cli.main import run
for line in sys.stdin:
    with redirect_stdout(out := io.StringIO()), redirect_stderr(out):
        code = run(json.loads(line))
    print(json.dumps([code, out.getvalue()]), flush=True)
"""


@dataclass(frozen=True)
class Command:
    """A command of a page, with the output and the exit code that the page shows."""

    line: str
    printed: str
    code: int = 0


@dataclass(frozen=True)
class File:
    """A file that a block of a page shows."""

    name: str
    text: str


def parts(text: str) -> Iterator[Command | File]:
    """Yield the files and commands of a page in their order."""
    for language, block in _PART.findall(text):
        if language == "console":
            yield from _commands(block)
        elif found := _FILE.match(block):
            yield File(found[1], block[found.end() :])


def _commands(block: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, printed = part.partition("\n")
        while line.endswith("\\"):
            more, _, printed = printed.partition("\n")
            line = f"{line[:-1]}{more.strip()}"
        code = _EXIT.search(printed)
        yield Command(line, _EXIT.sub("", printed), 0 if code is None else int(code[1]))


def masked(text: str) -> str:
    """Return a text without what differs from run to run."""
    for pattern, name in _MASKS:
        text = pattern.sub(name, text)
    return text


class Session:
    """A terminal in a folder; `replaced` are texts of the page that are others here, such as URLs."""

    def __init__(self, folder: Path, replaced: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._replaced = replaced or {}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        about = {"PATH": path, "PYTEST_ADDOPTS": PLUGINS, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "80"}
        self._environment = environment(folder, **about, PYTHONWARNINGS="error")
        self._jobs: list[subprocess.Popen[str]] = []
        self._perdure: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for job in self._jobs:
            job.terminate()
        codes = [job.wait(WAIT_SEC) for job in self._jobs]
        if self._perdure is not None:
            self._perdure.communicate(timeout=WAIT_SEC)
        if kind is None:  # do not hide the error
            assert set(codes) <= {0, -signal.SIGKILL}, codes

    def play(self, page: str) -> None:
        """Write the files and run the commands of a page, and compare their output with the page."""
        for part in parts(self._replace(page)):
            if isinstance(part, File):
                self._write(part)
            else:
                self._check(part)

    def _replace(self, text: str) -> str:
        for shown, here in self._replaced.items():
            text = text.replace(shown, here)
        return text

    def _write(self, file: File) -> None:
        (self.folder / file.name).write_text(file.text)
        self._stop_perdure()  # it has imported the earlier text

    def _check(self, command: Command) -> None:
        if command.line.endswith("&"):
            self._start(command.line.removesuffix("&"))
        elif killed := re.fullmatch(r"(?:(.+) && )?kill( -9)? (?:%(\d)|\$!)", command.line):
            if killed[1]:
                self._compare(Command(killed[1], command.printed, command.code))
            self._kill(self._jobs[int(killed[3] or 0) - 1], signal.SIGKILL if killed[2] else signal.SIGTERM)
        else:
            self._compare(command)

    def _start(self, line: str) -> None:
        about = {"cwd": self.folder, "env": self._environment}
        self._jobs.append(subprocess.Popen(["bash", "-c", f"exec {line}"], text=True, **about))  # type: ignore[call-overload]

    @staticmethod
    def _kill(job: "subprocess.Popen[str]", number: signal.Signals) -> None:
        job.send_signal(number)
        job.wait(WAIT_SEC)

    def _compare(self, command: Command) -> None:
        expected = (command.code, masked(command.printed))
        until = time.monotonic() + WAIT_SEC
        others = list[tuple[int, str]]()
        while True:
            code, printed = self._run(command.line)
            if (code, masked(printed)) == expected:
                return
            if (code, masked(printed)) not in others:
                others.append((code, masked(printed)))
            if not (_repeatable(command.line) or code == NOT_FOUND) or time.monotonic() > until:
                pytest.fail(f"{command.line}\nexpected {expected}\nbut printed, in this order:\n{others}")
            time.sleep(0.02)

    def _run(self, line: str) -> tuple[int, str]:
        program, *arguments = shlex.split(line)
        if program == "perdure" and not {"|", ">", ">>"} & set(arguments):
            return self._run_perdure(arguments)
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WAIT_SEC,
            check=False,
        )
        return done.returncode, done.stdout

    def _run_perdure(self, arguments: list[str]) -> tuple[int, str]:
        if self._perdure is None:
            self._perdure = subprocess.Popen(
                [sys.executable, "-c", _PERDURE],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        _pipe(self._perdure.stdin).write(json.dumps(arguments) + "\n")
        _pipe(self._perdure.stdin).flush()
        code, printed = json.loads(_pipe(self._perdure.stdout).readline())
        return int(code), str(printed)

    def _stop_perdure(self) -> None:
        if self._perdure is not None:
            self._perdure.communicate(timeout=WAIT_SEC)
            self._perdure = None


def _repeatable(line: str) -> bool:
    return line.startswith(("perdure ", "curl ")) and not line.startswith(tuple(f"perdure {each}" for each in CHANGES))


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
