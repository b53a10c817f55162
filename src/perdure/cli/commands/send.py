"""`perdure send` and `perdure publish`."""

from typing import Annotated

from cyclopts import Parameter

from perdure.cli.exits import usage_errors
from perdure.cli.inputs import json_value
from perdure.cli.opening import writing
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Output

Data = Annotated[str, Parameter(help="Data as JSON, @file, or - for stdin.")]


async def send(
    type: Annotated[str, Parameter(help="Type of the event.")],
    data: Data = "null",
    /,
    *,
    to: Annotated[str | None, Parameter(show_default=False, help="Id of the only run that receives it.")] = None,
    id: Annotated[str | None, Parameter(show_default=False, help="Id; events with the same are stored once.")] = None,
    source: Annotated[str, Parameter(show_default=False, help="Source of the event.")] = "",
    subject: Annotated[str | None, Parameter(show_default=False, help="Subject of the event.")] = None,
    common: Common = COMMON,
) -> None:
    """Send an event to the runs that wait for its type, or with --to to one run."""
    value = json_value(data, "DATA")
    async with writing(common) as client:
        with usage_errors():
            await client.send_event(type, value, to=to, id=id, source=source, subject=subject)
    about = "" if to is None else f" to run {to}"
    Output(common).single({"type": type, "to": to}, lambda: f"sent event {type}{about}")


async def publish(
    channel: Annotated[str, Parameter(help="Name of the channel.")],
    data: Data = "null",
    /,
    *,
    to: Annotated[str | None, Parameter(show_default=False, help="Id of the only run that receives it.")] = None,
    common: Common = COMMON,
) -> None:
    """Send a message to the runs that are subscribed to a channel, or with --to to one run."""
    value = json_value(data, "DATA")
    async with writing(common) as client:
        with usage_errors():
            if to is None:
                await client.publish(channel, value)
            else:
                await client.send_to(to, channel, value)
    about = "" if to is None else f" to run {to}"
    Output(common).single({"channel": channel, "to": to}, lambda: f"published on channel {channel}{about}")
