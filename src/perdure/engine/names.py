"""Names that users give, kept apart from those that the engine makes.

The channels of one run are stored as `<channel>:<run id>`, which the whole family does, and those of a child's end
begin with `~`. So a public channel or event type must not begin with `~`, and a colon in it is stored as `%3A`:
whatever its name, a message to everybody is never one to a single run.
"""

import re

from perdure.errors import LimitError
from perdure.model import limits

RESERVED = "~"
# Generations `<id>~<n>`, runs that were tried again `<id>~r<n>`, and children whose id was taken `<id>~c<n>`.
_MADE = re.compile(r"~[a-z]?[0-9]+\Z")
_ESCAPED = re.compile("%(3A|25)")


def stored(name: str, kind: str = "channel") -> str:
    """The channel that a public name stands for; `LimitError` if it is none."""
    limits.name(name, kind)
    if name.startswith(RESERVED):
        raise LimitError(f"{kind} {name!r} begins with {RESERVED!r}, which is reserved: choose another name")
    if ":" in name or _ESCAPED.search(name):
        return name.replace("%", "%25").replace(":", "%3A")
    return name


def direct(name: str, instance_id: str, kind: str = "channel") -> str:
    """The channel of what is sent to one run under a public name."""
    return f"{stored(name, kind)}:{instance_id}"


def public(channel: str) -> str:
    """A stored channel as people know it."""
    return _ESCAPED.sub(lambda found: ":" if found[1] == "3A" else "%", channel)


def group(name: str) -> str:
    """The name of a group."""
    if limits.name(name, "group name").startswith(RESERVED):
        raise LimitError(f"group name {name!r} begins with {RESERVED!r}, which is reserved: choose another name")
    return name


def run_id(id: str | None) -> str | None:
    """The id that a user gives a run; none that the engine could give another one."""
    if id is not None and (limits.name(id, "run id", limits.INSTANCE_ID_MAX).startswith(RESERVED) or _MADE.search(id)):
        raise LimitError(
            f"run id {id!r} is reserved: ids that begin with '~', or end in '~' and a number, are made by the engine; "
            "choose another id"
        )
    return id
