"""Parse the URL of a MySQL database: `mysql://user:password@host:3306,other:3306/database?option=value`.

- `pool_size`, `pool_timeout`: maximum number of connections, and maximum wait for one in seconds
- `connect_timeout`, `read_timeout`: seconds after which a server that does not answer counts as unavailable
- `idle_transaction_timeout`: seconds without a statement after which a transaction is ended (default: never); MariaDB
  rounds up to whole seconds, and MySQL ignores the option
- `unix_socket`: a path instead of the host
- `ssl`: `true` encrypts, `verify` also checks the server's certificate, against `ssl_ca` if given; `ssl_cert` and
  `ssl_key` are the client's own certificate
"""

import re
from contextlib import suppress
from getpass import getuser
from ssl import CERT_NONE, SSLContext, create_default_context
from typing import Any
from urllib.parse import unquote

from perdure.database.secret import Secret, SecretBytes, options_of
from perdure.errors import ConfigurationError

OPTIONS = {
    "pool_size": int,
    "pool_timeout": float,
    "connect_timeout": float,
    "read_timeout": float,
    "idle_transaction_timeout": float,
    "unix_socket": str,
    "ssl": str,
    "ssl_ca": str,
    "ssl_cert": str,
    "ssl_key": str,
}
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]@\s]+))(?::(\d{1,5}))?")


def parse(url: str) -> tuple[list[tuple[str, int]], dict[str, Any], dict[str, Any]]:
    """Return the hosts, the arguments for asyncmy, and the options. No error quotes a possible part of the password."""
    scheme, _, rest = Secret(url).partition("://")
    place, _, query = rest.partition("?")
    netloc, _, database = place.partition("/")
    account, _, hosts = netloc.rpartition("@")
    user, _, password = account.partition(":")
    found = [_HOST.fullmatch(host) for host in (hosts or "localhost").split(",")]
    if scheme not in ("mysql", "mariadb") or not all(found) or "@" in database + query:
        raise ConfigurationError(
            "the MySQL URL is malformed: write mysql://user:password@host:3306/database?option=value, with special "
            "characters of user and password percent-encoded"
        )
    if not database:
        raise ConfigurationError("the MySQL URL names no database: end it with /database")
    options = {name: _option(name, value) for name, value in options_of(query).items()}
    login = {
        "user": str(unquote(user)) or getuser(),  # messages quote user and database, so these are plain
        "password": SecretBytes(unquote(password).encode()),  # asyncmy would encode text as Latin-1
        "database": str(unquote(database)),
        "unix_socket": options.get("unix_socket"),
        "ssl": _tls(options),
        "charset": "utf8mb4",
        "program_name": "perdure",
    }
    return [(host[1] or host[2], int(host[3] or 3306)) for host in found if host], login, options


def _option(name: str, value: str) -> Any:
    if name not in OPTIONS:
        shown = f"'{name}'" if name.isidentifier() else "without a name"
        raise ConfigurationError(f"unknown option {shown} in the MySQL URL: use one of {', '.join(OPTIONS)}")
    kind = OPTIONS[name]
    with suppress(ValueError):
        converted = kind(value)
        if kind is str or 0 < converted < 1e6:
            return converted
    raise ConfigurationError(f"the option {name} of the MySQL URL must be a number greater than 0")


def _tls(options: dict[str, Any]) -> SSLContext | None:
    mode, authority, certificate = options.get("ssl"), options.get("ssl_ca"), options.get("ssl_cert")
    if mode not in (None, "false", "true", "verify"):
        raise ConfigurationError("the option ssl of the MySQL URL must be false, true or verify")
    if mode == "false" or not (mode or authority or certificate):
        return None
    try:
        context = create_default_context(cafile=authority)
        if certificate:
            context.load_cert_chain(certificate, options.get("ssl_key"))
    except OSError as error:
        raise ConfigurationError(f"the certificates of the MySQL URL cannot be used: {error}") from error
    if mode != "verify" and not authority:
        context.check_hostname, context.verify_mode = False, CERT_NONE
    return context
