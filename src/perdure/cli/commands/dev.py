"""`perdure dev`: worker, HTTP API and dashboard in one process, which restarts when source files change."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.child_processes import pipe_to_children
from perdure.cli.commands.worker import AppName, chosen_app
from perdure.cli.development import PARENT
from perdure.cli.exits import UsageError
from perdure.cli.extras import installation, is_installed
from perdure.cli.listening import HOST, TOKEN, address, listening
from perdure.cli.options import COMMON, Common

PORT, DASHBOARD_PORT = 8000, 8001
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
    host: Annotated[str, Parameter(help=f"Address to listen on; other machines need a token in {TOKEN}.")] = HOST,
    port: Annotated[int, Parameter(help="Port of the HTTP API; 0 for a free one.")] = PORT,
    dashboard_port: Annotated[int, Parameter(help="Port of the dashboard; 0 for a free one.")] = DASHBOARD_PORT,
    folder: Annotated[Path, Parameter(help="Folder whose source files are watched.")] = Path(),
    common: Common = COMMON,
) -> None:
    """Run a worker, the HTTP API and the dashboard, and restart them when a source file changes. Ctrl-C ends it.

    The worker drains before a restart, and requests wait until it is over. Without the packages of the HTTP API or of
    the dashboard, the rest runs.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder")
    app = chosen_app(name, common, "dev")
    environment = dict(os.environ)
    if common.database is not None:
        environment["PERDURE_URL"] = common.database  # not an argument: other users of the machine see those
    with ExitStack() as stack:
        sockets = {
            part: stack.enter_context(listening(part, host, wanted, option))
            for part, wanted, option in (("http", port, "--port"), ("dashboard", dashboard_port, "--dashboard-port"))
            if is_installed(part)
        }
        _say(_banner(app, sockets))
        pipe = stack.enter_context(pipe_to_children())
        await _run(Process(app, sockets, pipe, environment), folder.resolve())


def _banner(app: str, sockets: Mapping[str, socket.socket]) -> str:
    lines = [f"{app}, until Ctrl-C", "  worker     executes runs"]
    for part, title in (("http", "HTTP API "), ("dashboard", "dashboard")):
        shown = f"http://{address(sockets[part])}/" if part in sockets else f"not installed: {installation(part)}"
        lines.append(f"  {title}  {shown}")
    return "\n".join(lines)


class Process:
    """The child process that is restarted; see `perdure.cli.development`."""

    def __init__(
        self, app: str, sockets: Mapping[str, socket.socket], pipe: int, environment: Mapping[str, str]
    ) -> None:
        self._inherited = {PARENT: pipe, **{part: each.fileno() for part, each in sockets.items()}}
        self._arguments = [app, *(f"{name}={number}" for name, number in self._inherited.items())]
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it."""
        # A session of its own: Ctrl-C reaches only this program, which then lets the child drain once.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "perdure.cli.development",
            *self._arguments,
            env=self._environment,
            pass_fds=list(self._inherited.values()),
            start_new_session=True,
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

    def hurry(self) -> None:
        """End the draining: a second signal does."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def take_end(self) -> int | None:
        """Return the exit code of a process that ended by itself, once; None otherwise."""
        process = self._process
        if process is None or process.returncode is None:
            return None
        self._process = None
        return process.returncode


async def _run(process: Process, folder: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_or_hurry() -> None:
        if stop.is_set():
            process.hurry()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_or_hurry)
    known = await asyncio.to_thread(stamps, folder)
    try:
        await process.start()
        _say(f"watching {len(known)} files in {folder}")
        while not stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SEC):
                    await stop.wait()
            if (code := process.take_end()) is not None:
                _say(f"the process ended with code {code}; it starts again when a source file changes")
            now = await asyncio.to_thread(stamps, folder)
            if now != known and not stop.is_set():
                _say(f"{_changed(known, now)} changed, restarting")
                known = now
                await process.stop()
                if not stop.is_set():
                    await process.start()
    finally:
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
