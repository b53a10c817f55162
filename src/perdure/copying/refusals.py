"""The reasons not to begin or continue a copy."""

from collections.abc import Collection, Iterable
from datetime import timedelta

from perdure.copying.catalog import Table
from perdure.copying.database import Database
from perdure.copying.guarding import Marker
from perdure.copying.writing import Step
from perdure.engine.worker.stuck import is_live
from perdure.errors import CopyError
from perdure.storage.migrations import versions
from perdure.storage.migrations.placement import choose_ledger, existing_tables, recorded_versions

NAMED_MAX = 10  # workers or versions that an error names


async def refuse_same(source: Database, target: Database) -> None:
    """Raise `CopyError` if source and target are one database, whatever their URLs are."""
    if source.dialect != target.dialect:
        return
    identities = [await each.fetch("identity") for each in (source, target)]
    if identities[0] == identities[1]:
        raise CopyError(f"source and target are the same database, {source.place}: name another target")


async def refuse_unknown_versions(database: Database) -> None:
    """Raise `CopyError` if a newer release, or another framework, has changed the tables."""
    reader, dialect, schema = database.storage.db(), database.dialect, database.storage.schema
    ledger = await choose_ledger(reader, dialect, schema, await existing_tables(reader, dialect, schema))
    recorded = await recorded_versions(reader, dialect, ledger, schema)
    if unknown := sorted(recorded - set(versions(dialect))):
        raise CopyError(
            f"{database.place} has the migrations {_shown(unknown)}, which this release of perdure does not know: use "
            "the release that made them"
        )


async def refuse_workers(source: Database) -> None:
    """Raise `CopyError` if workers are live, of perdure or of another framework."""
    storage = source.storage
    now = await storage.now()
    live = [
        f"{each.worker_id} ({_ago(now - each.beat_at)})" for each in await storage.list_workers() if is_live(each, now)
    ]
    now_text = source.driver.get_current_time_expr()
    rows = await source.fetch("foreign_leases", table=source.table("workflow_instances"), now=now_text)
    live += [f"{owner} (leases of {runs:,} runs of another framework)" for owner, runs in rows]
    if live:
        raise CopyError(
            f"{source.place} has live workers: {_shown(live)}. Stop them with SIGTERM, or Ctrl-C in their terminal, "
            "and run the command again; a worker that was killed counts as live until it has missed its heartbeats"
        )


async def refuse_rows(target: Database, tables: Iterable[Table]) -> None:
    """Raise `CopyError` if the target has any row."""
    filled = [each.name for each in tables if await target.fetch("any_row", table=target.table(each.name))]
    if filled:
        raise CopyError(
            f"the target {target.place} is not empty, it has rows in {_shown(filled)}: use an empty database"
        )


def refuse_other_copy(source: tuple[str, Marker | None], target: tuple[str, Marker | None]) -> None:
    """Raise `CopyError` if source or target takes part in another copy than that from the one to the other."""
    (source_place, of_source), (target_place, of_target) = source, target
    if of_source is not None and of_source.role == "target":
        raise CopyError(
            f"{source_place} is the incomplete target of a copy from {of_source.place}: finish that copy, or undo it "
            f"with `perdure copy --from {of_source.place} --to {source_place} --abort`"
        )
    if of_target is not None and of_target.role == "source":
        raise CopyError(f"the target {target_place} itself was copied to {of_target.place}: use an empty database")
    if of_source is not None and not _is_one_copy(of_source, target_place, of_target):
        what, when = ("was moved", "at") if of_source.state == "moved" else ("is being copied", "since")
        undo = "" if of_source.state == "moved" else f", or undo it with `perdure copy --from {source_place} --abort`"
        raise CopyError(
            f"{source_place} {what} to {of_source.place} {when} {of_source.since:%Y-%m-%d %H:%M} UTC: name that target"
            f"{undo}"
        )
    if of_source is None and of_target is not None and of_target.place != source_place:
        raise CopyError(
            f"the target {target_place} already is the target of a copy from {of_target.place}: use an empty database"
        )


def refuse_stale_rows(target: Database, steps: Collection[Step]) -> None:
    """Raise `CopyError` if rows were copied from a source whose guard was removed since, so it may have changed."""
    if any(step.copied for step in steps):
        raise CopyError(
            f"the target {target.place} has rows of a copy that was aborted at its source only: use an empty database, "
            "or add --abort to empty this one"
        )


def _is_one_copy(source: Marker, target_place: str, target: Marker | None) -> bool:
    return source.place == target_place if target is None else source.id == target.id


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX:,} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def _ago(span: timedelta) -> str:
    return f"last heartbeat {max(0.0, span.total_seconds()):.0f} s ago"
