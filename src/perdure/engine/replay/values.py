"""The values that a body takes between two records: times, random numbers, patches, and the state that it sets.

They are recorded together, in a row behind the record that made the body continue. On replay they are in the next row,
so a replay looks one row ahead.
"""

from collections.abc import Callable
from typing import Any

from perdure.engine.history.codec import encode
from perdure.engine.history.records import Taken
from perdure.errors import LimitError
from perdure.model import limits

STATE_MAX = limits.PAYLOAD_MAX - 64  # a state shares its row with the values taken before it
VALUE_ROOM = 128  # maximum size of one more value


_NOTHING: dict[str, Any] = {}  # for all bodies, most of which take no values: an empty dict takes 64 bytes


class MissingValue(Exception):
    """Raised on replay if the history has no value where the code takes one."""


class Values:
    """The values of one body. `replaying` is True while further rows of the history follow.

    `untouched` is True while further rows follow, the next one has no values, and the body has taken none.
    """

    __slots__ = (
        "_at",
        "_given",
        "_patches",
        "_run_id",
        "_size",
        "_state",
        "_state_size",
        "_taken",
        "numbered",
        "replaying",
        "untouched",
    )

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self.replaying = False
        self._given: dict[str, Any] = _NOTHING  # in the next row
        self._taken: dict[str, Any] | None = None  # since the last row
        self._state: bytes | None = None
        self._patches: dict[str, bool] | None = None  # what `patched` has returned
        self._at = ""
        self._size = self._state_size = 0  # in their future row, replayed values included
        self.untouched = False
        self.numbered = False  # the next row is a set_state() of an earlier version, where it was a step

    def look_ahead(self, upcoming: Taken | None, *, more: bool) -> None:
        """Prepare the values that the body takes next, which the next row has; `more` rows follow, or none."""
        self._size = self._state_size = 0
        self.replaying = more
        self.untouched = more and upcoming is None and self._state is None
        self._given = _NOTHING if upcoming is None else dict(upcoming.values)
        self.numbered = upcoming is not None and upcoming.state is not None and upcoming.numbered

    def end_replay(self) -> None:
        """Note that no more rows follow."""
        self.replaying, self.untouched, self._given = False, False, _NOTHING

    def end_turn(self) -> list[str]:
        """Return where the history has values that the code did not take, now that all its tasks wait.

        The state that the body set on replay is recorded, so it is forgotten.
        """
        if self.replaying:
            self._state, self._at = None, ""
        return sorted(self._given) if self._given else []

    def take(self, path: str, make: Callable[[], Any]) -> Any:
        """Return a new value; on replay the recorded one. Raises `MissingValue` if there is none."""
        if self._size + self._state_size > STATE_MAX - VALUE_ROOM:
            raise LimitError(
                f"run {self._run_id!r} called now(), random() or uuid4() too often without a step in between: "
                "await a step such as an activity in the loop, or call them in an activity"
            )
        if self.replaying:
            if path not in self._given:
                raise MissingValue(path)
            value = self._given.pop(path)
        else:
            value = make()
            self._note(path, value)
        self._size += len(path) + len(encode(value)) + 8
        return value

    def patched(self, name: str) -> bool:
        """Return whether the body takes the new path: True, unless its history passed this point without it."""
        if self._patches is None:
            self._patches = {}
        if name not in self._patches:
            key = f"patch:{name}"
            known = bool(self._given.pop(key, False))
            if not self.replaying:
                self._note(key, True)
            self._patches[name] = known or not self.replaying
        return self._patches[name]

    def _note(self, key: str, value: object) -> None:
        if self._taken is None:
            self._taken = {}
        self._taken[key] = value
        self._at = self._at or key

    def set_state(self, value: object) -> None:
        """Take the value that `RunHandle.state()` returns."""
        state = encode(value, what="the value of set_state()")
        if len(state) + self._size > STATE_MAX:
            raise LimitError(
                f"the value of set_state() has {len(state)} bytes, and the maximum is {STATE_MAX}: store large data "
                "elsewhere and set a reference to it"
            )
        self._state, self._state_size = state, len(state)
        self.untouched = False

    def record(self, fed: int) -> Taken | None:
        """Return what was taken since the last call, or None; `fed` is the number of records that the body saw."""
        if not self._taken and self._state is None:
            return None
        at = self._at or f"state:{fed}"
        taken = Taken(at, self._taken or {}, self._state)
        self._at, self._taken, self._state = "", None, None
        return taken
