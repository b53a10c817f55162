"""Extras of the package: what a command needs beyond the command line itself."""

import os
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

_HTTP = ("starlette", "uvicorn", "cloudevents")
EXTRAS: dict[str, tuple[str, ...]] = {"http": _HTTP, "dashboard": (*_HTTP, "jinja2")}


def is_installed(extra: str) -> bool:
    """Return whether the packages of an extra are installed."""
    try:
        return all(find_spec(name) is not None for name in EXTRAS[extra])
    except ImportError:
        return False


def installation(extra: str) -> str:
    """Return the command that installs an extra."""
    return f'pip install "perdure[{extra}]"'


def extra_with(module: str | None) -> str | None:
    """Return the smallest extra that has a package; None if none has."""
    top = (module or "").partition(".")[0]
    return next((extra for extra, packages in EXTRAS.items() if top in packages), None)


def dashboard_command(url: str, module: str) -> str:
    """Return the command that shows a database in the dashboard, with the source of the workflows of a module.

    It can be typed in this folder. The URL of a server is left out, because it may have a password.
    """
    database = shlex.quote(url) if url.startswith("sqlite:") else "URL"
    command = f"{_program()} dashboard --app {module} --database {database}"
    return command if is_installed("dashboard") else f"{installation('dashboard')} && {command}"


def _program() -> str:
    """Return how the program of this environment is called."""
    here = Path(sys.executable).parent / "perdure"
    found = shutil.which("perdure")
    if found is not None and Path(found) == here:
        return "perdure"
    return shlex.quote(os.path.relpath(here)) if here.exists() else f"{shlex.quote(sys.executable)} -m perdure"
