"""Measurements in processes of their own, each on an empty database."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.databases import fresh_database
from benchmarks.engine.measures import Figures

ROOT = Path(__file__).parents[2]


async def measure(name: str, size: int, database: str, server: str, tree: Path = ROOT) -> Figures:
    """Return the figures of one measurement, with the sources of a tree."""
    async with fresh_database(database, server) as url:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(Path(__file__).with_name("measures.py")), name, url, str(size)),
            env=os.environ | {"PYTHONPATH": str(tree / "src")},
            stdout=subprocess.PIPE,
        )
        output, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"the measurement {name} failed on {database} with the sources in {tree}")
    figures: Figures = json.loads(output)
    return figures
