"""Client libraries of brokers, which are optional."""

from importlib import import_module
from typing import Any

from perdure.errors import ConfigurationError


def library(module: str, extra: str) -> Any:
    """Return the client library of a broker, or raise `ConfigurationError` that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ConfigurationError(
            f'the Python package {module.partition(".")[0]!r} is not installed: pip install "perdure[{extra}]"'
        ) from error
