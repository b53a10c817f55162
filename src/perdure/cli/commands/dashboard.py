"""`perdure dashboard`."""

import os
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.apps import import_workflows
from perdure.cli.commands.serve import TOKEN, check_port
from perdure.cli.logs import LogLevel, level_of, start_logging
from perdure.cli.opening import writing
from perdure.cli.options import COMMON, Common
from perdure.dashboard.server import HOST, PORT, serve_dashboard


async def dashboard(
    *,
    host: Annotated[str, Parameter(help=f"Address to listen on; other machines need a token in {TOKEN}.")] = HOST,
    port: Annotated[int, Parameter(help="Port to listen on.")] = PORT,
    log_level: LogLevel = "WARNING",
    common: Common = COMMON,
) -> None:
    """Serve the dashboard of a database until SIGTERM or Ctrl-C; it executes no runs.

    The environment variable PERDURE_TOKEN has the token that people enter.
    """
    level = level_of(log_level)
    check_port(port)
    import_workflows(common)  # the page of schedules, and typed values, need their code
    start_logging(level)
    async with writing(common) as client:
        print(f"dashboard on http://{host}:{port}/, until Ctrl-C", flush=True)
        await serve_dashboard(client, host=host, port=port, token=os.environ.get(TOKEN) or None)
