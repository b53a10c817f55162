"""Children: runs that another run, their parent, starts and waits for.

One transaction stores the child, its link to the parent, the parent's subscription to its end and the parent's step.
The commit that ends the child also sends its outcome to the parent. A parent that stops waiting for a child cancels it
and waits until its steps are compensated.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.engine.history import ids
from perdure.engine.history.codec import encode
from perdure.engine.history.digests import Call
from perdure.engine.history.failures import cancelled, decode_failure, failed_run
from perdure.engine.history.records import Parent, row_of
from perdure.engine.interception import Interception, Start, around_start
from perdure.engine.starting import NewRun, store_at_first_free, with_suffixes
from perdure.errors import StorageError, WorkflowNotCancellableError
from perdure.model.limits import INSTANCE_ID_MAX
from perdure.model.records import CompensationEntry, Lease, ParentLink
from perdure.model.states import WorkflowStatus
from perdure.storage.contract import Storage

if TYPE_CHECKING:
    from perdure.engine.execution.rollback import Rollback
    from perdure.engine.execution.run import Run
    from perdure.engine.replay.body import Body
    from perdure.engine.replay.definitions import WorkflowDefinition
    from perdure.engine.replay.steps import Effect

log = logging.getLogger("perdure.engine")

TOGETHER_MAX = 100  # maximum number of children that are cancelled in one commit


def child_id(parent: str, path: str) -> str:
    """Return the id of the child that its parent starts in the step at `path`; ids differ between generations."""
    found = f"{parent}/{path}"
    if len(found) <= INSTANCE_ID_MAX:
        return found
    digest = hashlib.sha256(found.encode()).hexdigest()[:16]
    return f"{found[: INSTANCE_ID_MAX - 17]}~{digest}"


def creating(
    workflow: "WorkflowDefinition", data: bytes, run: "Body", path: str, interception: Interception | None = None
) -> "Effect":
    """Return the effect that stores a child, its link to the parent and the parent's subscription to its end."""
    parent_id, channel = run.run_id, ids.end_name(run.generation, path)
    row = row_of("", Parent(parent_id, channel))

    async def write(storage: Storage, lease: Lease) -> str:
        def link(child: str) -> ParentLink:
            entry = None
            if workflow.undo is not None:
                args = b'{"child": ' + encode(child) + b', "input": ' + data + b"}"
                entry = CompensationEntry(parent_id, ids.step(path, ids.CHILD), workflow.name, args)
            # It subscribes first: messages that are stored already belong to an earlier run with the parent's id.
            return ParentLink(lease, f"{channel}:{parent_id}", entry)

        new = NewRun(workflow.name, data, workflow.source_hash, workflow.source, events=[row], parent=link)
        # The child and its step are one commit, so an existing run with the child's id is another run.
        above = run.generation or parent_id
        names = (child_id(above, each) for each in with_suffixes(path))
        about = Start(workflow.name, "child", child_id(above, path), dict(run.headers))
        with around_start(interception, about):
            return await store_at_first_free(storage, replace(new, headers=about.stored_headers()), names)

    return write


def cancelling(instance_id: str, reason: str) -> "Effect":
    """Return the effect that cancels a child, unless it has ended."""

    async def write(storage: Storage, lease: Lease) -> None:
        with suppress(WorkflowNotCancellableError):  # it has ended
            await storage.cancel_instance(instance_id, reason, compensate=True)

    return write


async def call_child(
    run: "Body", workflow: "WorkflowDefinition", data: bytes, asked: Call, interception: Interception | None = None
) -> Any:
    """Start a child as the next step of the body, wait for its end, and return its result."""
    path = run.next_path()
    child: str = await run.effect_at(path, ids.CHILD, creating(workflow, data, run, path, interception), asked, str)
    run.child_started(child)
    channel = ids.end_channel(run.run_id, run.generation, path)
    name = ids.CHILD_END + workflow.name
    try:
        message = await run.wait(run.new_wait(name, (channel,), None, None))
    except asyncio.CancelledError:
        if not run.evicted:
            reason = f"its parent {run.run_id} no longer waits for it"
            await run.effect("cancel", cancelling(child, reason), Call(child))
            await run.wait(run.new_wait(name, (channel,), None, None))
            run.child_ended(child)
        raise
    run.child_ended(child)
    return outcome(workflow, child, message.data)


def outcome(workflow: "WorkflowDefinition", child: str, end: dict[str, Any]) -> Any:
    """Return the result of a child; raise its error if it failed or was cancelled."""
    if end["status"] == "completed":
        return workflow.signature.decode_result(json.dumps(end["output"]).encode())
    if end["status"] == "cancelled":
        raise cancelled(workflow.name, child, end["reason"])
    cause = decode_failure(end["failure"])
    raise failed_run(workflow.name, child, cause) from cause


def completed(output: bytes) -> bytes:
    """Return the message to the parent of a child that completed with this result."""
    return b'{"status": "completed", "output": ' + output + b"}"


def failed(failure: bytes) -> bytes:
    """Return the message to the parent of a child that failed with this error."""
    return b'{"status": "failed", "failure": ' + failure + b"}"


def was_cancelled(reason: str) -> bytes:
    """Return the message to the parent of a child that was cancelled for this reason."""
    return b'{"status": "cancelled", "reason": ' + encode(reason) + b"}"


async def notify_parent(storage: Storage, parent: Parent, end: bytes, child: str) -> None:
    """Send the outcome of a child to its parent, in the commit that ends the child; a repeated call changes nothing."""
    channel = f"{parent.channel}:{parent.run_id}"
    await storage.publish_to_channel(channel, end, message_id=f"{child}:end", source="perdure")


async def end_all(run: "Run | Rollback", children: Collection[str], reason: str) -> None:
    """Cancel the children that have not ended, and wait without a slot until they have."""
    if not children:
        return
    ended, left = await run.host.watch_ends(sorted(children))
    try:
        going = [row.instance_id for row in left if row.status is not WorkflowStatus.COMPENSATING]
        for first in range(0, len(going), TOGETHER_MAX):
            await _cancel(run, going[first : first + TOGETHER_MAX], reason)
            run.host.wake()
        if not ended.done():
            await run.slot.idle(ended)
    finally:
        ended.cancel()


async def _cancel(run: "Run | Rollback", children: Sequence[str], reason: str) -> None:
    """Cancel children in one commit; if that fails, one by one."""
    storage = run.host.storage
    if len(children) > 1:
        try:
            async with storage.transaction():
                for child in children:
                    with suppress(WorkflowNotCancellableError):  # it has ended
                        await storage.cancel_instance(child, reason, compensate=True)
            return
        except StorageError as error:  # a deadlock, for example: the storage retries single statements
            log.debug(
                "run %s (%s) could not cancel its %d children in one commit, cancelling them one by one: %s",
                run.id,
                run.workflow.name,
                len(children),
                error,
                extra={"run_id": run.id, "workflow": run.workflow.name, "reason": str(error)},
            )
    for child in children:
        with suppress(WorkflowNotCancellableError):  # it has ended
            await storage.cancel_instance(child, reason, compensate=True)
