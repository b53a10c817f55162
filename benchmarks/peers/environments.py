"""The systems that perdure is compared with, and their environments: `.peers/<name>/`, made on first use."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.engine.processes import ROOT

PEERS_FOLDER = ROOT / ".peers"


class PeerError(Exception):
    """A peer could not be installed or measured, in one line."""


class Peer(NamedTuple):
    """Another system: what to install, where it stores, and what a reader of its figures should know.

    One that stores in files of its own server is shown beside the database that it is compared with. `share` is the
    part of perdure's work that it does, so that a system that is many times slower does not take many times as long.
    """

    version: str
    requirements: tuple[str, ...]
    databases: tuple[str, ...]
    note: str
    npm: tuple[str, ...] = ()
    own_storage: bool = False
    share: float = 1.0


# The drivers are pinned, too: they decide about the speed as well. Everything is on PyPI or npm as a built package.
PEERS = {
    "dbos": Peer(
        "3.3.0",
        ("dbos==3.3.0", "psycopg[binary]==3.3.8", "sqlalchemy==2.1.8"),
        ("sqlite", "postgresql"),
        "starts runs in the calling process, without a queue",
        share=0.2,
    ),
    "edda": Peer(
        "0.16.2",
        ("edda-framework[postgresql]==0.16.2", "aiosqlite==0.22.1", "asyncpg==0.32.0", "sqlalchemy==2.1.8"),
        ("sqlite", "postgresql"),
        "executes one run at a time on SQLite, where runs fail if there are more",
        share=0.2,
    ),
    "absurd": Peer(
        "0.5.1",
        ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.8"),
        ("postgresql",),
        "looks for tasks every 250 ms and for results after 50 ms or more: its defaults",
        share=0.2,
    ),
    "restate": Peer(
        "1.7.12",
        ("restate-sdk==1.2.0", "hypercorn==0.18.0", "aiohttp==3.14.5"),
        ("postgresql",),
        "stores in the files of its own server; its services are processes of their own, one for each core",
        npm=("@restatedev/restate-server@1.7.12",),
        own_storage=True,
    ),
}


def interpreter(name: str) -> Path:
    """Return the Python of a peer."""
    return PEERS_FOLDER / name / "bin" / "python"


def ensure(name: str) -> None:
    """Create the environment of a peer, unless it exists with these versions."""
    peer, folder = PEERS[name], PEERS_FOLDER / name
    ready, wanted = folder / ".ready", "\n".join((*peer.requirements, *peer.npm))
    if ready.exists() and ready.read_text() == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    _run(uv, "venv", "--quiet", "--python", sys.executable, str(folder))
    packages = ("--quiet", "--compile-bytecode", "--only-binary", ":all:", *peer.requirements)
    _run(uv, "pip", "install", "--python", str(interpreter(name)), *packages)
    if peer.npm:
        _run("npm", "install", "--silent", "--ignore-scripts", "--prefix", str(folder / "server"), *peer.npm)
    ready.write_text(wanted)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except OSError as error:
        raise PeerError(f"{Path(command[0]).name} is not installed") from error
    if done.returncode:
        raise PeerError(f"{Path(command[0]).name} failed: {last_line(done.stdout)}")


def last_line(text: str) -> str:
    """Return the last line with text, which names the error."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it printed nothing")
