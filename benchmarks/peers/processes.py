"""Measurements of peers, each in a process of the peer's own interpreter and on an empty database."""

import asyncio
import json
import os
import signal
import subprocess
import tempfile

from benchmarks.databases import fresh_database
from benchmarks.engine.measures import Figures
from benchmarks.engine.processes import ROOT
from benchmarks.peers.environments import PEERS, PeerError, interpreter, last_line

LIMIT_SEC = 1800.0  # the slowest measurement of a peer takes some minutes; more means that it hangs


async def measure(peer: str, name: str, size: int, database: str, server: str) -> Figures:
    """Return the figures of one measurement of a peer."""
    if PEERS[peer].own_storage:
        return await _play(peer, name, size, "-")
    async with fresh_database(database, server) as url:
        return await _play(peer, name, size, url)


async def _play(peer: str, name: str, size: int, url: str) -> Figures:
    # As a module, because a script's folder comes first on the path: there "dbos" would be our module, not the package.
    command = [str(interpreter(peer)), "-m", f"benchmarks.peers.{peer}", name, url, str(size)]
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # so that what the peer starts can be ended with it
        )
        try:
            output, errors = await asyncio.wait_for(process.communicate(), LIMIT_SEC)
        except TimeoutError:
            raise PeerError(f"it took more than {LIMIT_SEC:.0f} s") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
    if process.returncode:
        raise PeerError(last_line(errors.decode(errors="replace")))
    figures: Figures = json.loads(last_line(output.decode()))
    return figures
