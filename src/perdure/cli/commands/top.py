"""`perdure top`: counts, workers and runs, live."""

import asyncio
from datetime import timedelta
from typing import Annotated

from cyclopts import Parameter

from perdure.cli.commands.runs import COLUMNS as RUN_COLUMNS
from perdure.cli.exits import UsageError
from perdure.cli.opening import reading
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Output
from perdure.engine.api.client import Client, storage_of
from perdure.engine.worker.stuck import oldest_due
from perdure.inspection import list_workers, run_document
from perdure.inspection.documents import Document, stamp
from perdure.inspection.reasons import duration
from perdure.model.states import WAITING, WorkflowStatus

COUNT_MAX = 10_000
LISTED = 10
MINUTE = timedelta(minutes=1)
FASTEST_SEC = 0.2


async def top(
    *,
    every: Annotated[float, Parameter(help="Seconds between two reads.")] = 2.0,
    common: Common = COMMON,
) -> None:
    """Show a full-screen view until Ctrl-C. Without a terminal, or as JSON, it is printed once."""
    if every < FASTEST_SEC:
        raise UsageError(f"--every must be at least {FASTEST_SEC} seconds, not {every:g}")
    async with reading(common) as client:
        output = Output(common)
        if not output.is_table or not output.stream.isatty():
            found = await snapshot(client)
            output.single(found, lambda: _text(output, found))
            return
        await _live(client, common, every)


async def _live(client: Client, common: Common, every: float) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        while True:
            output = Output(common)
            text = Text.from_ansi(_text(output, await snapshot(client)))
            text.no_wrap, text.overflow = True, "crop"
            live.update(text, refresh=True)
            await asyncio.sleep(every)


async def snapshot(client: Client) -> Document:
    """Return what `perdure top` shows. Counts go up to 10,000, so that they stay cheap."""
    storage = storage_of(client)
    now, due = await storage.now(), await oldest_due(storage)
    counts = {status.value: await client.runs(status=status).count(COUNT_MAX) for status in WorkflowStatus}
    workers = await list_workers(client)
    stuck = [run_document(run) for run in (await client.runs(stuck=True).page(LISTED)).runs]
    running = [run_document(run) for run in (await client.runs(status=WorkflowStatus.RUNNING).page(LISTED)).runs]
    return {
        "at": stamp(now),
        "counts": counts,
        "waiting": min(sum(counts[status.value] for status in WAITING), COUNT_MAX),
        "stuck_count": await client.runs(stuck=True).count(COUNT_MAX),
        "started_last_minute": await client.runs(started_after=now - MINUTE).count(COUNT_MAX),
        "workers_live": sum(worker.is_live for worker in workers),
        "workers_dead": sum(not worker.is_live for worker in workers),
        "oldest_due_sec": None if due is None else due.total_seconds(),
        "stuck": stuck,
        "running": running,
    }


def _text(output: Output, found: Document) -> str:
    counts = found["counts"]
    due = found["oldest_due_sec"]
    head = [
        ("time", str(output.time(found["at"]))),
        ("runs", "  ".join(f"{name} {_number(count)}" for name, count in _shown_counts(found))),
        ("started", f"{_number(found['started_last_minute'])} in the last minute"),
        ("ended", "  ".join(f"{name} {_number(counts[name])}" for name in ("completed", "failed", "cancelled"))),
        ("workers", f"{found['workers_live']} live, {found['workers_dead']} without a recent heartbeat"),
        ("oldest due", "-" if due is None else duration(timedelta(seconds=due))),
    ]
    parts = [output.pairs(head)]
    for title in ("stuck", "running"):
        if found[title]:
            parts.append(f"{output.paint(title, 'bold')}\n{output.table(found[title], RUN_COLUMNS)}")
    return "\n\n".join(parts)


def _shown_counts(found: Document) -> list[tuple[str, int]]:
    counts = found["counts"]
    return [
        ("running", counts["running"]),
        ("waiting", found["waiting"]),
        ("compensating", counts["compensating"]),
        ("stuck", found["stuck_count"]),
    ]


def _number(count: int) -> str:
    return f"{count:,}+" if count >= COUNT_MAX else f"{count:,}"
