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
ENGINE = Path(__file__).with_name("measures.py")


async def measure(
    name: str, size: int, database: str, server: str, tree: Path = ROOT, *, script: Path = ENGINE
) -> Figures:
    """Return the figures of one measurement on an empty database, with the sources of a tree."""
    async with fresh_database(database, server) as url:
        return await play(script, name, url, size, tree)


async def play(script: Path, name: str, url: str, size: int, tree: Path = ROOT) -> Figures:
    """Return the figures that a script prints, in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(script), name, url, str(size)),
        env=os.environ | {"PYTHONPATH": f"{tree / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode:
        database = url.partition(":")[0]
        raise SystemExit(f"the measurement {name} failed on {database} with the sources in {tree}")
    figures: Figures = json.loads(output)
    return figures
