"""`perdure init`."""

import re
import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.exits import UsageError
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Column, Output
from perdure.cli.project import project_files

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*\Z")


def init(
    folder: Annotated[Path, Parameter(help="Folder of the project; it is created.")] = Path(),
    /,
    *,
    common: Common = COMMON,
) -> None:
    """Create a small project with a workflow, an App and a test that passes. Existing files are never changed."""
    name = folder.resolve().name
    if not _NAME.match(name):
        raise UsageError(f"{name!r} is no name of a project: use letters, digits, - and _, and begin with a letter")
    files = project_files(name)
    if existing := [file for file in files if (folder / file).exists()]:
        raise UsageError(f"{folder} has {', '.join(existing)} already: choose a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        with (folder / file).open("x", encoding="utf-8") as opened:
            opened.write(text)
    output = Output(common)
    output.listing("files", [{"path": str(folder / file)} for file in files], [Column("path", is_whole=True)])
    enter = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    output.note(f"next: {enter}perdure dev")
