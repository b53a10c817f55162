"""The log of commands that run until a signal."""

import logging
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.exits import UsageError

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

LogLevel = Annotated[str, Parameter(help="Level of the log, unless the app configures logging.")]


def level_of(name: str) -> int:
    """Return the number of a level; raise `UsageError` if there is none with this name."""
    level = logging.getLevelNamesMapping().get(name.upper())
    if level is None:
        raise UsageError(f"--log-level must be DEBUG, INFO, WARNING or ERROR, not {name!r}")
    return level


def start_logging(level: int) -> None:
    """Log to the standard error. This does nothing if the app has configured logging."""
    if logging.getLogger().handlers:
        return
    logging.basicConfig(level=level, format=FORMAT)
    logging.getLogger("uvicorn.error").setLevel(max(level, logging.WARNING))  # its start and stop are logged with URLs
