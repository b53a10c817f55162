"""`perdure cleanup`."""

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from perdure.cli import exits
from perdure.cli.inputs import duration
from perdure.cli.opening import reading, writing
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Output
from perdure.engine.worker.retention import Retention, Swept

Span = Annotated[str | None, Parameter(show_default=False)]


async def cleanup(
    *,
    finished: Annotated[
        str | None, Parameter(show_default=False, help="Delete runs that ended longer ago than this, such as 30d.")
    ] = None,
    messages: Annotated[
        str | None, Parameter(show_default=False, help="Delete messages older than this that no live run needs.")
    ] = None,
    outbox: Annotated[
        str | None, Parameter(show_default=False, help="Delete events published longer ago than this.")
    ] = None,
    message_ids: Annotated[
        str | None,
        Parameter(
            name="--message-ids",
            show_default=False,
            help="With --messages: how long to recognise duplicates of messages (default: 7d).",
        ),
    ] = None,
    dry_run: Annotated[bool, Parameter(name="--dry-run", negative="", help="Only count.")] = False,
    common: Common = COMMON,
) -> None:
    """Delete what is no longer needed, in small batches while workers run (retention sweep)."""
    given = {"finished": finished, "messages": messages, "outbox": outbox}
    if not any(given.values()):
        raise exits.UsageError("say what to delete: --finished 30d, --messages 7d or --outbox 7d")
    if message_ids is not None and messages is None:
        raise exits.UsageError("--message-ids needs --messages: ids are kept as long as messages are")
    with exits.usage_errors():
        policy = {name: duration(each, f"--{name}") for name, each in given.items()}
        if message_ids is not None:
            policy["message_ids"] = duration(message_ids, "--message-ids")
        retention = Retention(**policy)  # type: ignore[arg-type]
    async with (reading if dry_run else writing)(common) as client:
        swept = await client.sweep(retention, dry_run=dry_run)
    Output(common).single(asdict(swept), lambda: _text(swept))


def _text(swept: Swept) -> str:
    verb = "would delete" if swept.dry_run else "deleted"
    messages = "an unknown number of" if swept.messages is None else f"{swept.messages:,}"
    return f"{verb} {swept.finished:,} runs, {messages} messages and {swept.outbox:,} published events"
