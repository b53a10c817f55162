"""The addresses that commands listen on."""

import errno
import os
import socket

from perdure.cli.exits import UsageError
from perdure.errors import ConfigurationError

HOST = "127.0.0.1"
TOKEN = "PERDURE_TOKEN"  # nosec B105 # the name of a variable
NAMES = {"http": "the HTTP API", "dashboard": "the dashboard"}


def listening(part: str, host: str, port: int, option: str = "--port") -> socket.socket:
    """Return the socket of a server; raise `UsageError` if its address cannot be used."""
    from perdure.http.auth import checked_token, is_loopback  # it needs an extra
    from perdure.http.server import listen

    if not 0 <= port <= 65535:
        raise UsageError(f"{option} must be 0 to 65535, not {port}")
    if token := os.environ.get(TOKEN):
        checked_token(token, TOKEN)
    elif not is_loopback(host):
        raise UsageError(
            f"--host {host} would let other machines use {NAMES[part]}, which has no token: set {TOKEN} to one"
        )
    try:
        return listen(host, port)
    except ConfigurationError as error:
        cause = error.__cause__
        if isinstance(cause, socket.gaierror) or (isinstance(cause, OSError) and cause.errno == errno.EADDRNOTAVAIL):
            raise UsageError(
                f"--host {host} is no address of this machine ({cause}): use {HOST}, or 0.0.0.0"
            ) from error
        raise UsageError(
            f"{NAMES[part]} cannot use port {port} of {host} ({cause}): end the program that does, or choose "
            f"another port with {option} (0: a free one)"
        ) from error


def address(listener: socket.socket) -> str:
    """Return the address of a socket as in a URL."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
