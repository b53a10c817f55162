"""`perdure serve`."""

from typing import Annotated

from cyclopts import Parameter

from perdure.cli.commands.worker import AppName, app_to_run
from perdure.cli.development import serve as serve_until_signal
from perdure.cli.listening import TOKEN, listening
from perdure.cli.logs import LogLevel, level_of, start_logging
from perdure.cli.options import COMMON, Common
from perdure.http.server import HOST, PORT


async def serve(
    name: AppName = None,
    /,
    *,
    host: Annotated[str, Parameter(help=f"Address to listen on; other machines need a token in {TOKEN}.")] = HOST,
    port: Annotated[int, Parameter(help="Port to listen on; 0 for a free one.")] = PORT,
    log_level: LogLevel = "INFO",
    common: Common = COMMON,
) -> None:
    """Serve the HTTP API and execute runs until SIGTERM or Ctrl-C, then drain.

    The environment variable PERDURE_TOKEN has the token that requests need, and PERDURE_WEBHOOK_KEYS the keys of
    signed webhooks, separated by spaces: arguments of a command would be visible to other users of the machine.
    """
    level = level_of(log_level)
    app = app_to_run("serve", name, common)
    with listening("http", host, port) as listener:
        start_logging(level)
        await serve_until_signal(app, {"http": listener})
