"""Building the site from its staged folder, and showing it while the pages are written."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from scripts.docs.definitions import SOURCE
from scripts.docs.pages import DOCS, ROOT, TOP, dead_links, sources
from scripts.docs.staging import stage

FOLDER = ROOT / "build" / "docs"
POLL_SEC = 1.0
_COLOR = re.compile(r"\x1b\[[\d;]*m")  # zensical colors each letter, also in a file


class BuildError(Exception):
    """The site cannot be built; the message has the dead links, or the output of zensical."""


def build(folder: Path = FOLDER) -> Path:
    """Build the site in a folder, and return the folder with its pages. Dead links and warnings of zensical fail it."""
    _check_links()
    stage(folder)
    done = subprocess.run(
        [*_zensical("build"), "--strict", "--clean"],
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise BuildError(_COLOR.sub("", done.stdout))
    return folder / "site"


def _check_links() -> None:
    """Raise `BuildError` if a link leads nowhere. On the site, links to files that are no pages have another host."""
    dead = [f"{file.relative_to(ROOT)}: {link}" for file in sources().values() for link in dead_links(file)]
    if dead:
        raise BuildError("these links lead nowhere, or are not written as [text](target):\n" + "\n".join(dead))


def serve(address: str, folder: Path = FOLDER) -> int:
    """Show the site at an address until Ctrl-C, and build it again when a page or a module changes."""
    stage(folder)
    seen = _latest_change()
    server = subprocess.Popen([*_zensical("serve"), "--dev-addr", address], cwd=folder, env=_environment())
    try:
        while server.poll() is None:
            time.sleep(POLL_SEC)
            if (now := _latest_change()) != seen:
                seen = now
                # A new process, because this one keeps the modules that it has read. An error is printed; the next
                # change repairs it.
                subprocess.run([sys.executable, "-m", "scripts.docs", "stage"], cwd=ROOT, check=False)
        return server.returncode
    except KeyboardInterrupt:
        return 0
    finally:
        server.terminate()
        server.wait()


def _zensical(command: str) -> list[str]:
    return [sys.executable, "-m", "zensical", command, "--config-file", "zensical.toml"]


def _environment() -> dict[str, str]:
    """Return the environment in which zensical can import `scripts.docs.slugs`."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def _latest_change() -> float:
    files = [*DOCS.rglob("*"), *SOURCE.rglob("*.py"), *(ROOT / name for name in TOP)]
    return max(file.stat().st_mtime for file in files if file.is_file())
