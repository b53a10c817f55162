"""What an App or Relay is given as its publisher."""

import inspect
from collections.abc import Callable

from perdure.brokers.publishing import Publisher, publisher_for
from perdure.database.secret import Secret
from perdure.engine.worker.relay import FunctionPublisher, PublishFunction


def checked_publisher(given: str | PublishFunction | Publisher, owner: str) -> Publisher:
    """Return the publisher for a URL or a function, or a given one; raise `TypeError` or `ConfigurationError`."""
    if isinstance(given, str):
        given = Secret(given)
        return publisher_for(given)
    if isinstance(given, Publisher) and not isinstance(given, type):
        return given
    if inspect.isroutine(given) and _is_plain(given):
        raise TypeError(f"{owner}(publisher=) must be an async function: define {given.__name__!r} with `async def`")
    if callable(given) and not isinstance(given, type):
        return FunctionPublisher(given)
    raise TypeError(
        f"{owner}(publisher=) must be the URL of a broker, an async function that is called with an event, or a "
        f"Publisher, not {given!r}"
    )


def _is_plain(function: Callable[..., object]) -> bool:
    """Return whether a function has published when it returns; a lambda may return what an async function returned."""
    return function.__name__ != "<lambda>" and not inspect.iscoroutinefunction(function)
