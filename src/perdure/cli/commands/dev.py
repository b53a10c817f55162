"""`perdure dev`: a worker that restarts when source files change."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.commands.worker import AppName, chosen_app
from perdure.cli.exits import UsageError
from perdure.cli.options import COMMON, Common

LOOK_SEC = 0.4
FILES_MAX = 20_000
SUFFIXES = (".py", ".toml")
SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"})
KILL_SEC = 30.0  # after this time a process that does not drain is killed

Stamps = Mapping[str, tuple[int, int]]


async def dev(
    name: AppName = None,
    /,
    *,
    folder: Annotated[Path, Parameter(help="Folder whose source files are watched.")] = Path(),
    common: Common = COMMON,
) -> None:
    """Run a worker and restart it when a source file changes; it drains first. Ctrl-C ends it."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder")
    app = chosen_app(name, common)
    environment = dict(os.environ)
    if common.database is not None:
        environment["PERDURE_URL"] = common.database  # not an argument: other users of the machine see those
    processes = [Process(arguments, environment) for arguments in parts(app)]
    await _run(processes, folder.resolve())


def parts(app: str) -> list[list[str]]:
    """Return the commands that run beside each other; the dashboard and the HTTP app will be further ones."""
    return [["worker", app]]


class Process:
    """A child process that is restarted."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str]) -> None:
        self._arguments, self._environment = arguments, environment
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it."""
        # A session of its own: Ctrl-C reaches only this program, which then lets the child drain once.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "perdure", *self._arguments, env=self._environment, start_new_session=True
        )

    async def stop(self) -> None:
        """Let it drain, and wait until it has ended."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(KILL_SEC):
                await process.wait()
        except TimeoutError:
            _say(f"the process {process.pid} has not drained after {KILL_SEC:.0f} s and is killed")
            process.kill()
            await process.wait()

    def take_end(self) -> int | None:
        """Return the exit code of a process that ended by itself, once; None otherwise."""
        process = self._process
        if process is None or process.returncode is None:
            return None
        self._process = None
        return process.returncode


async def _run(processes: list[Process], folder: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    known = await asyncio.to_thread(stamps, folder)
    try:
        for process in processes:
            await process.start()
        _say(f"watching {len(known)} files in {folder}")
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SEC):
                    await stop.wait()
            for process in processes:
                if (code := process.take_end()) is not None:
                    _say(f"the process ended with code {code}; it starts again when a source file changes")
            now = await asyncio.to_thread(stamps, folder)
            if now != known and not stop.is_set():
                _say(f"{_changed(known, now)} changed, restarting")
                known = now
                for process in processes:
                    await process.stop()
                    await process.start()
    finally:
        for process in processes:
            await process.stop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def stamps(folder: Path) -> Stamps:
    """Return the time of change and the size of each source file below a folder."""
    found: dict[str, tuple[int, int]] = {}
    for path in _sources(folder):
        with suppress(OSError):  # deleted meanwhile
            about = os.stat(path)
            found[path] = about.st_mtime_ns, about.st_size
        if len(found) > FILES_MAX:
            raise UsageError(f"{folder} has more than {FILES_MAX:,} source files: name a smaller --folder")
    return found


def _sources(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = [each for each in folders if each not in SKIPPED and not each.startswith(".")]
        for file in files:
            if file.endswith(SUFFIXES):
                yield os.path.join(place, file)


def _changed(before: Stamps, after: Stamps) -> str:
    paths = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    names = ", ".join(os.path.basename(path) for path in paths[:3])
    return names if len(paths) <= 3 else f"{names} and {len(paths) - 3} more"


def _say(text: str) -> None:
    print(f"perdure dev: {text}", file=sys.stderr, flush=True)
