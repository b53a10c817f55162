"""`perdure worker`."""

import logging
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.apps import load_app
from perdure.cli.exits import UsageError
from perdure.cli.options import COMMON, Common
from perdure.cli.settings import app_name
from perdure.engine.api.app import App

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

AppName = Annotated[
    str | None, Parameter(help="module:app, or a module without an App (default: app in [tool.perdure]).")
]


async def worker(
    name: AppName = None,
    /,
    *,
    log_level: Annotated[str, Parameter(help="Level of the log, unless the app configures logging.")] = "INFO",
    common: Common = COMMON,
) -> None:
    """Migrate the database and execute runs until SIGTERM or Ctrl-C, then drain. A second signal ends the draining."""
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise UsageError(f"--log-level must be DEBUG, INFO, WARNING or ERROR, not {log_level!r}")
    app = load_app(chosen_app(name, common), common)
    _check_database(app, common)
    logging.basicConfig(level=level, format=FORMAT)  # does nothing if the app has configured it
    await app.serve()


def chosen_app(name: str | None, common: Common) -> str:
    """Return the name of the app to run."""
    found = name or app_name(common)
    if found is None:
        raise UsageError('name the app: perdure worker module:app, or app = "module:app" under [tool.perdure]')
    return found


def _check_database(app: App, common: Common) -> None:
    if common.database is not None and str(app.url) != common.database:
        raise UsageError(
            "--database differs from the database of the App, which decides: change App(…), or name the module only if "
            "it has no App"
        )
