"""`perdure relay`."""

import os
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.apps import codec_of
from perdure.cli.exits import UsageError
from perdure.cli.logs import LogLevel, level_of, start_logging
from perdure.cli.options import COMMON, Common
from perdure.cli.settings import database_url
from perdure.engine.api.relay import Relay

PUBLISHER = "PERDURE_PUBLISHER"


async def relay(
    *,
    publisher: Annotated[
        str | None,
        Parameter(
            show_default=False,
            help=f"URL of a broker or webhook, such as nats://host (default: the variable {PUBLISHER}).",
        ),
    ] = None,
    log_level: LogLevel = "INFO",
    common: Common = COMMON,
) -> None:
    """Migrate the database and publish the outbox until SIGTERM or Ctrl-C, without executing runs."""
    level = level_of(log_level)
    target = publisher or os.environ.get(PUBLISHER)
    if not target:
        raise UsageError(f"name the broker: --publisher nats://host, or the environment variable {PUBLISHER}")
    relaying = Relay(database_url(common), publisher=target, codec=codec_of(common))
    start_logging(level)
    await relaying.serve()
