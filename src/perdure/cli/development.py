"""Serving the HTTP API and the dashboard, and the process that `perdure dev` restarts.

`python -m perdure.cli.development module:app parent=3 http=4 dashboard=5`: the numbers are a pipe to the parent, and
sockets that the parent listens on, so that requests wait during a restart.
"""

import asyncio
import importlib
import logging
import os
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.cli import exits
from perdure.cli.child_processes import end_with_parent
from perdure.cli.commands.worker import app_to_run
from perdure.cli.listening import NAMES, TOKEN
from perdure.cli.logs import start_logging
from perdure.cli.options import Common
from perdure.engine.api.client import Client

if TYPE_CHECKING:
    from perdure.http.server import Application

HERE = str(Path(__file__).parents[1])
KEYS = "PERDURE_WEBHOOK_KEYS"
PARENT = "parent"


async def serve(client: Client, sockets: Mapping[str, socket.socket]) -> None:
    """Serve what there are sockets for until a signal; an App executes runs as well."""
    from perdure.http.server import Server, serve_together  # it needs an extra

    async with AsyncExitStack() as stack:
        made = [Server(_application(client, part, stack), listener, NAMES[part]) for part, listener in sockets.items()]
        await serve_together(client, made)


def _application(client: Client, part: str, stack: AsyncExitStack) -> "Application":
    token = os.environ.get(TOKEN) or None
    if part == "dashboard":
        from perdure.dashboard.app import dashboard_app

        dashboard = dashboard_app(client, token=token)
        stack.push_async_callback(dashboard.close)
        return dashboard
    from perdure.http.app import http_app

    # The user's module has imported it if its App has these metrics; a registry of its own would not be known here.
    prometheus = sys.modules.get("perdure.integrations.prometheus")
    metrics = None if prometheus is None else prometheus.render_global
    return http_app(client, token=token, webhook_keys=os.environ.get(KEYS, "").split(), metrics=metrics)


def main(arguments: Sequence[str]) -> int:
    """Run until a signal, and return the exit code; show an error in the user's module with its place."""
    name, *given = arguments
    inherited = {each: int(number) for each, _, number in (one.partition("=") for one in given)}
    end_with_parent(inherited.pop(PARENT))
    sockets = {part: socket.socket(fileno=number) for part, number in inherited.items()}
    try:
        app = app_to_run("dev", name, Common())
        start_logging(logging.INFO)
        asyncio.run(serve(app, sockets) if sockets else app.serve())
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except Exception as error:
        if isinstance(error, exits.CommandError) and error.__cause__ is not None:
            print(_own_lines(error.__cause__), file=sys.stderr)
        found = exits.problem_of(error)
        print(f"perdure: {found.detail.removesuffix('; --debug shows the traceback')}", file=sys.stderr, flush=True)
        return found.exit_code
    return exits.OK


def _own_lines(error: BaseException) -> str:
    """Return a traceback without the lines of the command line and of the import system."""
    found = traceback.TracebackException.from_exception(error)
    kept = [frame for frame in found.stack if not frame.filename.startswith((HERE, "<frozen ", importlib.__file__))]
    found.stack = traceback.StackSummary.from_list(kept)
    found.__cause__ = found.__context__ = None
    return "".join(found.format()).rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
