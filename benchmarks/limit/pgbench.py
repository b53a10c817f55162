"""PostgreSQL as its own benchmark measures it: `pgbench`."""

import asyncio
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.engine.measures import Figures, Play

CLIENTS, THREADS = 20, 2
SCALE = 10
_INSERT = "INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (1, 1, :client_id, 1, CURRENT_TIMESTAMP);\n"


def program() -> str | None:
    """Return the path of pgbench, or None if it is not installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("[0-9]*/bin"), key=lambda folder: -float(folder.parent.name))
    found = (shutil.which("pgbench", path=str(folder)) for folder in folders)
    return next(filter(None, found), None) or shutil.which("pgbench")


def transactions(*, inserts: bool) -> Play:
    """Return a measurement of transactions per second: of single-row inserts, or of pgbench's own TPC-B-like script."""

    async def play(url: str, size: int) -> Figures:
        await _run(["--initialize", "--quiet", f"--scale={SCALE if size >= CLIENTS else 1}", url])
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
            script.write(_INSERT)
            script.flush()
            clients = [f"--client={CLIENTS}", f"--jobs={THREADS}", f"--transactions={max(1, size // CLIENTS)}"]
            work = [f"--file={script.name}"] if inserts else ["--builtin=tpcb-like"]
            output = await _run([*clients, "--no-vacuum", "--protocol=prepared", *work, url])
        found = re.search(r"tps = ([\d.]+)", output)
        if found is None:
            raise SystemExit(f"pgbench printed no transactions per second: {output}")
        return {"value": float(found[1])}

    return play


async def _run(arguments: Sequence[str]) -> str:
    process = await asyncio.create_subprocess_exec(
        *(program() or "pgbench", *arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"pgbench failed: {output.decode()}")
    return output.decode()
