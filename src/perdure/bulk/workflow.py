"""The workflow `perdure.bulk`: it records which runs are meant, page by page, and then changes them in batches.

Every batch of `cancel` and `retry` is one transaction that also records its result and checks the lease, so each run is
changed exactly once, also if a worker dies or loses its lease in the middle. `delete` needs no transaction, which could
be long: a run that is gone stays gone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from perdure.bulk.selection import NAME, Action, Selection, read_page
from perdure.engine.api import current
from perdure.engine.api.activity import activity
from perdure.engine.api.calls import set_state
from perdure.engine.api.client import Client, retry_once, storage_of
from perdure.engine.api.workflow import workflow
from perdure.engine.replay.context import activity_info
from perdure.errors import (
    CommitUnknownError,
    DatabaseUnavailableError,
    EngineError,
    LeaseLostError,
    PerdureError,
    RunNotFoundError,
    TransactionError,
    WorkflowNotCancellableError,
)
from perdure.model.retries import Retry
from perdure.storage.administration import administration_of

BATCH = 25  # runs in a transaction: on SQLite it blocks all other writers
REASONS_MAX = 100  # failures whose reason the result has; the steps have all
REASON_MAX = 300
_ALWAYS = Retry(attempts=1_000_000)  # an action that was confirmed is carried out, however long the database is busy
_FATAL = (CommitUnknownError, DatabaseUnavailableError, LeaseLostError, TransactionError)  # not the fault of one run


@dataclass(frozen=True, slots=True)
class Page:
    """The ids of runs, and the token of the next page."""

    ids: list[str]
    token: str | None


@dataclass(frozen=True, slots=True)
class Changed:
    """What a batch came to: how many runs were changed, how many it no longer applied to, and why others failed."""

    done: int
    skipped: int
    failed: dict[str, str]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an action is; the state of its run, and in the end its result.

    - `found`: how many runs it was confirmed for; None while they are being read.
    - `done`, `skipped`, `failed`: how many runs were changed, had changed meanwhile so that the action no longer
      applied (they have ended, or have been retried), and could not be changed.
    - `reasons`: why, by id, for at most 100 of the runs that could not be changed.
    """

    action: Action
    found: int | None = None
    done: int = 0
    skipped: int = 0
    failed: int = 0
    reasons: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return it in a line for people."""
        if self.found is None:
            return f"{self.action}: the runs are being read"
        return f"{self.action}: {self.done:,} of {self.found:,}, skipped: {self.skipped:,}, failed: {self.failed:,}"

    def plus(self, changed: Changed) -> "Progress":
        """Return the progress after another batch."""
        reasons = {**self.reasons, **changed.failed}
        return replace(
            self,
            done=self.done + changed.done,
            skipped=self.skipped + changed.skipped,
            failed=self.failed + len(changed.failed),
            reasons=dict(list(reasons.items())[:REASONS_MAX]),
        )


@workflow(name=NAME)
async def bulk(action: Action, selection: Selection, reason: str = "", audit_id: int | None = None) -> Progress:
    """Cancel, retry or delete the runs of a selection; `audit_id` is the row that says who confirmed it."""
    set_state(Progress(action))
    ids: list[str] = []
    page = Page([], "")
    while page.token is not None and len(ids) < selection.most:
        page = await select(action, selection, page.token or None, selection.most - len(ids), audit_id)
        ids += page.ids
    progress = Progress(action, len(ids))
    set_state(progress)
    for first in range(0, len(ids), BATCH):
        batch = ids[first : first + BATCH]
        changed = await (delete(batch) if action == "delete" else change(action, batch, reason))
        progress = progress.plus(changed)
        set_state(progress)
    return progress


@activity(name="perdure.bulk.select", retry=_ALWAYS)
async def select(action: Action, selection: Selection, token: str | None, most: int, audit_id: int | None) -> Page:
    """Read a page of the runs, and relate them to the audit before any of them is changed."""
    client, own = _client(), activity_info().workflow_id
    found, following = await read_page(client, action, selection, token)
    ids = [id for id in found if id != own][:most]
    administration = administration_of(storage_of(client))
    if audit_id is not None and administration is not None:
        await administration.audit.relate(audit_id, [own, *ids])
    return Page(ids, following)


@activity(name="perdure.bulk.change", transactional=True, retry=_ALWAYS)
async def change(action: Action, ids: list[str], reason: str) -> Changed:
    """Cancel or retry a batch of runs, in one transaction.

    A run that was retried before is skipped: its failure is still there, and another retry would repeat its effects.
    """
    client = _client()
    done = skipped = 0
    failed: dict[str, str] = {}
    for id in sorted(ids):  # the order in which all transactions lock runs
        try:
            async with storage_of(client).transaction():  # a savepoint: what fails leaves no trace
                if action == "cancel":
                    await client.cancel(id, reason)
                elif not await retry_once(client, id):  # another action was faster
                    skipped += 1
                    continue
            done += 1
        except (WorkflowNotCancellableError, RunNotFoundError):
            skipped += 1
        except _FATAL:
            raise
        except PerdureError as error:
            failed[id] = f"{type(error).__name__}: {error}"[:REASON_MAX]
    return Changed(done, skipped, failed)


@activity(name="perdure.bulk.delete", retry=_ALWAYS)
async def delete(ids: list[str]) -> Changed:
    """Delete a batch of runs. Those that another attempt, or someone else, has deleted count as done."""
    storage = storage_of(_client())
    await storage.delete_ended(ids)
    left = [row.instance_id for row in await storage.get_instances(ids) if row is not None]
    why = "a run that has not ended continues from it, or another process is changing it"
    return Changed(len(ids) - len(left), 0, dict.fromkeys(left, why))


def _client() -> Client:
    """Return the App that executes the calling activity: also one that is not announced as open, as in `serving`."""
    app = current.APP.get()
    if app is None:
        raise EngineError("the activities of perdure.bulk are executed by its runs only")
    return app


def progress_of(state: object) -> Progress | None:
    """Return the progress that a run of `perdure.bulk` published; None if it has not yet."""
    if isinstance(state, Progress):
        return state
    if not isinstance(state, Mapping):
        return None
    known: Mapping[str, Any] = state
    return Progress(**{name: known[name] for name in Progress.__dataclass_fields__ if name in known})
