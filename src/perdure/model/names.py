"""Names that users choose, kept separate from those that the engine makes.

The channels of one run are stored as `<channel>:<run id>`, as in compatible frameworks, and those for the ends of
children start with `~`. So a public channel or event type must not start with `~`, and a colon in it is stored as
`%3A`: a message to all subscribers can never be mistaken for a message to one run.
"""

import re

from perdure.errors import LimitError
from perdure.model import limits

RESERVED = "~"
# Generations `<id>~<n>`, retried runs `<id>~r<n>`, and children whose id already existed `<id>~c<n>`.
_MADE = re.compile(r"~[a-z]?[0-9]+\Z")
_ESCAPED = re.compile("%(3A|25)")


def stored(name: str, kind: str = "channel") -> str:
    """Return the stored name of a public channel or event type; raise `LimitError` if it is invalid."""
    limits.name(name, kind)
    if name.startswith(RESERVED):
        raise LimitError(f"{kind} {name!r} begins with {RESERVED!r}, which is reserved: choose another name")
    if ":" in name or _ESCAPED.search(name):
        escaped = name.replace("%", "%25").replace(":", "%3A")
        return limits.name(escaped, f"{kind} {name!r}, with its colons stored as '%3A',")
    return name


def direct(name: str, instance_id: str, kind: str = "channel") -> str:
    """Return the stored name of the channel for messages to one run."""
    return of_run(stored(name, kind), instance_id, kind)


def of_run(stored_name: str, instance_id: str, kind: str = "channel") -> str:
    """Return the same for a stored name; raise `LimitError` if it is too long together with the run's id."""
    channel = f"{stored_name}:{instance_id}"
    if len(channel) > limits.NAME_MAX:
        raise LimitError(
            f"{kind} {public(stored_name)!r} and the id of run {instance_id!r} have {len(channel) - 1} characters "
            f"together, and messages to one run allow {limits.NAME_MAX - 1}: use a shorter {kind}, or a shorter run id"
        )
    return channel


def public(channel: str) -> str:
    """Return the public name of a stored channel."""
    return _ESCAPED.sub(lambda found: ":" if found[1] == "3A" else "%", channel)


def group(name: str) -> str:
    """Return the name of a group; raise `LimitError` if it is invalid."""
    if limits.name(name, "group name").startswith(RESERVED):
        raise LimitError(f"group name {name!r} begins with {RESERVED!r}, which is reserved: choose another name")
    return name


def run_id(id: str | None) -> str | None:
    """Return the id that a user chose for a run; raise `LimitError` if it is invalid or reserved for the engine."""
    if id is not None and (limits.name(id, "run id", limits.INSTANCE_ID_MAX).startswith(RESERVED) or _MADE.search(id)):
        raise LimitError(
            f"run id {id!r} is reserved: ids that start with '~', or end in '~', an optional letter and a number, "
            "belong to the engine; choose another id"
        )
    return id
