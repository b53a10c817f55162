"""Names of workers and relays in the database and the log."""

import os
import secrets
import socket


def new_worker_id() -> str:
    """Return a name that is unique: host name, process id and a random part."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{secrets.token_hex(4)}"
