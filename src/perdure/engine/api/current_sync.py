"""The SyncClients of this process, and which of them a call uses.

A SyncClient counts as open from its construction: it connects at its first call, in each process.
"""

import threading
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING

from perdure.errors import EngineError

if TYPE_CHECKING:
    from perdure.engine.api.sync_client import SyncClient

ENTERED: "ContextVar[SyncClient | None]" = ContextVar("perdure_sync_client", default=None)
_guard = threading.Lock()
_open: "weakref.WeakSet[SyncClient]" = weakref.WeakSet()


def opened(client: "SyncClient") -> None:
    """Note that a client was made."""
    with _guard:
        _open.add(client)


def closed(client: "SyncClient") -> None:
    """Note that a client was closed."""
    with _guard:
        _open.discard(client)


def entered() -> "SyncClient | None":
    """Return the client of the enclosing `with` block of this thread, or None."""
    client = ENTERED.get()
    return client if client is not None and client in _open else None


def only_one() -> "SyncClient | None":
    """Return the only open client of this process; None if there are several or none."""
    with _guard:
        found = list(_open)
    return found[0] if len(found) == 1 else None


def current_client(call: str, otherwise: str) -> "SyncClient":
    """Return the client of this thread, or the only open one.

    Otherwise raise `EngineError` that names the call, and says what to do `otherwise`, without a SyncClient.
    """
    client = entered() or only_one()
    if client is not None:
        return client
    with _guard:
        several = sorted(map(repr, _open))
    if several:
        raise EngineError(
            f"{call} could use each of {len(several)} SyncClients that are open: {', '.join(several)}. Call it inside "
            "`with` of one of them, or use client.start(workflow, …) and client.get(id)"
        )
    raise EngineError(
        f"{call} needs a SyncClient, and none is open in this process: make one with `client = SyncClient(url)`, or "
        f"use `with SyncClient(url):` around this call. {otherwise}"
    )
