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
from getpass import getuser
from ssl import CERT_NONE, SSLContext, create_default_context
from typing import Any
from urllib.parse import unquote

from perdure.database.secret import SecretBytes
from perdure.database.urls import Kind, convert_options, split
from perdure.errors import ConfigurationError

KIND = Kind(
    "MySQL",
    ("mysql", "mariadb"),
    3306,
    re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]@\s]+))(?::(\d{1,5}))?"),
    {
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
    },
    default_host="localhost",
)


def parse(url: str) -> tuple[list[tuple[str, int]], dict[str, Any], dict[str, Any]]:
    """Return the hosts, the arguments for asyncmy, and the options."""
    parts = split(url, KIND)
    if not parts.database:
        raise ConfigurationError("the MySQL URL names no database: end it with /database")
    options = convert_options(parts.options, KIND)
    login = {
        "user": str(parts.user) or getuser(),  # messages quote user and database, so these are plain
        "password": SecretBytes(parts.password.encode()),  # asyncmy would encode text as Latin-1
        "database": str(unquote(parts.database)),
        "unix_socket": options.get("unix_socket"),
        "ssl": _tls(options),
        "charset": "utf8mb4",
        "program_name": "perdure",
    }
    found = [KIND.host.fullmatch(host) for host in parts.hosts.split(",")]
    return [(host[1] or host[2], int(host[3] or KIND.port)) for host in found if host], login, options


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
