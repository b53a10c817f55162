"""Send and receive hints that there may be work, on the four notification channels of Edda and Romancy."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TypeVar

from perdure.database.backends.base import Silent
from perdure.database.operation import Operation, Work
from perdure.errors import CommitUnknownError, StorageError
from perdure.model.records import WakeUp
from perdure.storage.sql import load_statements
from perdure.storage.transactions import Transactions

T = TypeVar("T")
S = load_statements("wakeups")

RESUMABLE = "workflow_resumable"
MESSAGE = "workflow_channel_message"
OUTBOX = "workflow_outbox_pending"
TIMER = "workflow_timer_expired"

COALESCED = '{"reason":"coalesced"}'  # the payload that stands for any others

SEVERAL = "count"  # the key of a payload that stands for several instances but names only one

AGAIN_SEC = (0.05, 0.2, 1.0, 4.0)  # after a hint of another framework

_OWN_KEYS = {"reason", "instance_id", "channel", "event_id"}  # each of our payloads has one of them

Payload = Mapping[str, object]
Say = Callable[[T], Payload | None]


class Wakeups(Transactions):
    """Listen for work, and announce it."""

    def wakeups(self) -> AsyncIterator[WakeUp]:
        """Yield hints from this and other processes. Hints may be lost or false, so look for work periodically, too."""
        hints = self._backend.wakeups()
        return _repeated(hints) if self._features.notifications else hints

    async def _announce(
        self, kind: str, work: Work[T], say: Say[T] | None, notifying: Callable[[str], Work[T]] | None = None
    ) -> T:
        """Run an operation after which there may be work for others, and announce it: at its commit, or soon after it.

        `say` returns the payload for a result, with the keys that Edda and Romancy expect, or None for a result that is
        not worth it: announcing an attempt without effect would wake workers that make the same attempt. Without `say`
        nothing is announced. `notifying` returns the same operation with statements that notify themselves, which saves
        the round trips of a transaction around it and a notification.
        """
        notifier = self._backend.notifier
        if say is None or isinstance(notifier, Silent):
            return await self._run(work)
        silent = not notifier.due(kind)
        if not silent and notifying is not None:
            work = notifying(kind)
        elif not silent:
            quiet = work.start
            work = replace(work, start=lambda: _telling(quiet(), kind, say), single=False)
        try:
            result = await self._run(work)
            silent = silent and say(result) is not None
            return result
        except StorageError as error:
            silent = silent and isinstance(error, CommitUnknownError)
            raise
        finally:  # also when cancelled: it may have been committed all the same
            if silent and self.in_transaction():
                self.register_post_commit_callback(lambda: notifier.trail(kind))
            elif silent:
                notifier.trail(kind)


async def _repeated(hints: AsyncIterator[WakeUp]) -> AsyncGenerator[WakeUp]:
    """Yield the hints, and those of other frameworks again a few times.

    Edda notifies before its transaction has committed, or before it has released its lock: a look finds nothing then.
    """
    loop, later = asyncio.get_running_loop(), list[tuple[float, WakeUp]]()
    upcoming: asyncio.Future[WakeUp] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(hints))
            timeout = later[0][0] - loop.time() if later else None
            if (await asyncio.wait([upcoming], timeout=timeout))[0]:
                heard, upcoming = upcoming, None
                hint = heard.result()
                if hint.kind != "scan" and _OWN_KEYS.isdisjoint(hint.payload):
                    # Earlier hints of the same kind need no further looks of their own.
                    later = [(at, other) for at, other in later if other.kind != hint.kind]
                    later = sorted([*later, *((loop.time() + pause, hint) for pause in AGAIN_SEC)], key=itemgetter(0))
                yield hint
            else:
                yield later.pop(0)[1]
    except StopAsyncIteration:
        return
    finally:
        if upcoming is not None:
            upcoming.cancel()
            await asyncio.wait([upcoming])
        if isinstance(hints, AsyncGenerator):
            await hints.aclose()


def _telling(operation: Operation[T], kind: str, say: Say[T]) -> Operation[T]:
    """Run the operation and send a notification in its transaction."""
    result = yield from operation
    payload = say(result)
    if payload is not None:
        known = {key: value for key, value in payload.items() if value is not None}
        yield S.notify(kind=kind, payload=json.dumps(known, ensure_ascii=False))  # escapes could exceed its 8,000 bytes
    return result


def first_of(payloads: Sequence[Payload]) -> Payload | None:
    """Return the payload for several instances: the first and their number, without a workflow: others' may differ."""
    if len(payloads) > 1:
        return {**payloads[0], "workflow_name": None, "wf_name": None, SEVERAL: len(payloads)}
    return payloads[0] if payloads else None


def resumable(instance_id: str, workflow_name: str | None = None, reason: str | None = None) -> Payload:
    """Return the payload for an instance that can be resumed or has ended, with the keys that Edda and Romancy use."""
    return {
        "instance_id": instance_id,
        "workflow_name": workflow_name,
        "wf_id": instance_id,
        "wf_name": workflow_name,
        "reason": reason,
    }
