"""`perdure serve`."""

import os
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.commands.worker import AppName, app_to_run
from perdure.cli.exits import UsageError
from perdure.cli.logs import LogLevel, level_of, start_logging
from perdure.cli.options import COMMON, Common
from perdure.http.server import HOST, PORT
from perdure.http.server import serve as serve_http

TOKEN = "PERDURE_TOKEN"  # nosec B105 # the name of a variable
KEYS = "PERDURE_WEBHOOK_KEYS"


async def serve(
    name: AppName = None,
    /,
    *,
    host: Annotated[str, Parameter(help=f"Address to listen on; other machines need a token in {TOKEN}.")] = HOST,
    port: Annotated[int, Parameter(help="Port to listen on.")] = PORT,
    log_level: LogLevel = "INFO",
    common: Common = COMMON,
) -> None:
    """Serve the HTTP API and execute runs until SIGTERM or Ctrl-C, then drain.

    The environment variable PERDURE_TOKEN has the token that requests need, and PERDURE_WEBHOOK_KEYS the keys of
    signed webhooks, separated by spaces: arguments of a command would be visible to other users of the machine.
    """
    level = level_of(log_level)
    check_port(port)
    app = app_to_run("serve", name, common)
    start_logging(level)
    token, keys = os.environ.get(TOKEN) or None, os.environ.get(KEYS, "").split()
    await serve_http(app, host=host, port=port, token=token, webhook_keys=keys)


def check_port(port: int) -> None:
    """Raise `UsageError` if there is no such port."""
    if not 0 <= port <= 65535:
        raise UsageError(f"--port must be 0 to 65535, not {port}")
