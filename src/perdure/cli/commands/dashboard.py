"""`perdure dashboard`."""

from typing import Annotated

from cyclopts import Parameter

from perdure.bulk import Background
from perdure.cli.apps import import_workflows
from perdure.cli.development import serve
from perdure.cli.listening import TOKEN, address, listening
from perdure.cli.logs import LogLevel, level_of, start_logging
from perdure.cli.opening import writing
from perdure.cli.options import COMMON, Common
from perdure.dashboard.server import HOST, PORT


async def dashboard(
    *,
    host: Annotated[str, Parameter(help=f"Address to listen on; other machines need a token in {TOKEN}.")] = HOST,
    port: Annotated[int, Parameter(help="Port to listen on; 0 for a free one.")] = PORT,
    log_level: LogLevel = "WARNING",
    common: Common = COMMON,
) -> None:
    """Serve the dashboard of a database until SIGTERM or Ctrl-C; of runs it executes only its actions on many runs.

    The environment variable PERDURE_TOKEN has the token that people enter.
    """
    level = level_of(log_level)
    with listening("dashboard", host, port) as listener:
        import_workflows(common)  # the page of schedules, and typed values, need their code
        start_logging(level)
        async with writing(common) as client:
            background = Background()
            await background.resume(client)
            print(f"dashboard on http://{address(listener)}/ (Ctrl-C to stop)", flush=True)
            try:
                await serve(client, {"dashboard": listener})
            finally:
                await background.close()
