"""What an App or Relay is given as its publisher."""

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
    if callable(given) and not isinstance(given, type):
        return FunctionPublisher(given)
    raise TypeError(
        f"{owner}(publisher=) must be the URL of a broker, an async function that is called with an event, or a "
        f"Publisher, not {given!r}"
    )
