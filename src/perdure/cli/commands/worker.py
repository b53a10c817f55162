"""`perdure worker`."""

import os
import sys
from importlib import import_module
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.apps import load_app
from perdure.cli.exits import UsageError
from perdure.cli.logs import LogLevel, level_of, start_logging
from perdure.cli.options import COMMON, Common
from perdure.cli.settings import app_name, plain_url
from perdure.database.secret import Secret
from perdure.engine.api.app import App

VARIABLE = "PERDURE_URL"

AppName = Annotated[
    str | None, Parameter(help="module:app, or a module without an App (default: app in [tool.perdure]).")
]


async def worker(
    name: AppName = None,
    /,
    *,
    log_level: LogLevel = "INFO",
    common: Common = COMMON,
) -> None:
    """Migrate the database and execute runs until SIGTERM or Ctrl-C, then drain. A second signal ends the draining."""
    level = level_of(log_level)
    app = app_to_run("worker", name, common)
    start_logging(level)
    await app.serve()


def app_to_run(command: str, name: str | None, common: Common) -> App:
    """Return the App that a command runs: the one it names, or the configured one.

    Unless that App names its workflows, it also resumes actions on many runs whose process has ended.
    """
    app = load_app(chosen_app(name, common, command), common)
    import_module("perdure.bulk")
    _check_database(app, common)
    return app


def chosen_app(name: str | None, common: Common, command: str = "worker") -> str:
    """Return the name of the app to run."""
    found = name or app_name(common)
    if found is None:
        raise UsageError(f'name the app: perdure {command} module:app, or app = "module:app" under [tool.perdure]')
    return found


def _check_database(app: App, common: Common) -> None:
    if common.database is not None and str(app.url) != plain_url(Secret(common.database)):
        raise UsageError(
            "--database differs from the database of the App, which decides: change App(…), or name the module only if "
            "it has no App"
        )
    configured = os.environ.get(VARIABLE)
    if configured and app.url and plain_url(Secret(configured)) != str(app.url):
        print(
            f"perdure: {VARIABLE} differs from the database of the App, which decides: write "
            f'App(os.environ["{VARIABLE}"]), or unset the variable',
            file=sys.stderr,
            flush=True,
        )
