"""Encrypted connections to brokers."""

import ssl

from perdure.errors import ConfigurationError


def client_context(ca_file: str | None, setting: str) -> ssl.SSLContext:
    """Return what checks the certificate of a broker: that the CAs in the file, or those of the system, issued it.

    Raise `ConfigurationError`, which names the setting, if the file cannot be read.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        why = "it has no certificate in the PEM format" if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigurationError(f"{setting} cannot be read: {ca_file!r}: {why}") from error
