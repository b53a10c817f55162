"""Retry policies: the number of attempts of an activity and the pauses between them."""

import random
from dataclasses import dataclass
from datetime import timedelta

from perdure.errors import EventDataError, LimitError, SerializationError, TerminalError
from perdure.model.durations import Duration, seconds


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy with exponential back-off.

    - `attempts`: maximum number of attempts, the first one included (default: 3).
    - `initial`: the pause after the first failed attempt (default: 0.2 seconds).
    - `factor`: each further pause is this many times as long as the one before (default: 2).
    - `maximum`: the longest pause (default: 5 minutes).
    - `jitter`: each pause is shortened by a random share of at most this much, from 0 to 1 (default: 0.2).
    - `give_up_on`: a tuple of exception classes that are not retried, besides `TerminalError` and
      results that cannot be stored (default: none).

    Durations are seconds or timedeltas. Raises `TypeError` or `ValueError` for an invalid setting.
    """

    attempts: int = 3
    initial: Duration = 0.2
    factor: float = 2.0
    maximum: Duration = timedelta(minutes=5)
    jitter: float = 0.2
    give_up_on: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        _check_number("attempts", self.attempts, 1, whole=True)
        _check_number("factor", self.factor, 1)
        _check_number("jitter", self.jitter, 0, 1)
        object.__setattr__(self, "initial", seconds(self.initial, "Retry(initial=)"))
        object.__setattr__(self, "maximum", seconds(self.maximum, "Retry(maximum=)"))
        classes: object = self.give_up_on
        if not isinstance(classes, tuple) or not all(isinstance(c, type) and issubclass(c, Exception) for c in classes):
            raise TypeError(f"Retry(give_up_on=) must be a tuple of exception classes, not {classes!r}")

    def pause(self, attempt: int, error: BaseException) -> float | None:
        """Return the seconds to wait after this attempt failed, or None if there is no further attempt."""
        misuse = (SerializationError, EventDataError, LimitError)  # which the same code would repeat
        final: tuple[type[Exception], ...] = (TerminalError, *misuse, *self.give_up_on)
        if attempt >= self.attempts or not isinstance(error, Exception) or isinstance(error, final):
            return None
        longest = seconds(self.maximum, "maximum")
        try:
            pause = min(seconds(self.initial, "initial") * self.factor ** (attempt - 1), longest)
        except OverflowError:
            pause = longest
        return pause * random.uniform(1 - self.jitter, 1)  # nosec B311 # a pause


def _check_number(name: str, value: object, least: float, most: float = float("inf"), *, whole: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise TypeError(f"Retry({name}=) must be {'a whole number' if whole else 'a number'}, not {value!r}")
    if not least <= value <= most:
        bound = f"at least {least:g}" if most == float("inf") else f"between {least:g} and {most:g}"
        raise ValueError(f"Retry({name}=) must be {bound}, not {value!r}")
