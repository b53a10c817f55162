"""The options for starting a run."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import get_args

from perdure.engine.replay import context
from perdure.engine.starting import IfExists
from perdure.model import names
from perdure.model.durations import Duration, moment, span
from perdure.model.headers import Headers, checked


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options for starting a run; see `Workflow.options`."""

    id: str | None = None
    at: datetime | None = None
    after: Duration | None = None
    timeout: Duration | None = None
    if_exists: IfExists = "return"
    in_transaction: object = None
    headers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        names.run_id(self.id)
        if self.at is not None:
            moment(self.at, "options(at=)")
        if self.headers is not None:
            object.__setattr__(self, "headers", checked(self.headers, "options(headers=)"))
        if self.at is not None and self.after is not None:
            raise TypeError("options() takes at= or after=, not both")
        if self.if_exists not in get_args(IfExists):
            raise ValueError(f'options(if_exists=) must be "return" or "error", not {self.if_exists!r}')
        for name, positive in (("after", False), ("timeout", True)):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, span(given, f"options({name}=)", positive=positive))

    def given(self) -> list[str]:
        """Return the names of the options that differ from their defaults."""
        return [each.name for each in fields(self) if getattr(self, each.name) != each.default]


def with_inherited(headers: Headers | None) -> Headers:
    """Return the headers of the run whose body or activity makes this call, if any, with these added."""
    inherited = context.inherited_headers()
    return inherited if not headers else checked({**inherited, **headers}, "options(headers=)")
