"""Import asyncmy, the native driver, which an extra installs. No other module outside this package uses it."""

from datetime import datetime
from functools import cache
from importlib import import_module
from typing import Any

asyncmy: Any
try:
    asyncmy = import_module("asyncmy")
except ImportError:  # reported when a backend is created
    asyncmy = None


@cache
def conversions() -> dict[Any, Any]:
    """Return asyncmy's column converters, with one for times that is ten times as fast."""
    converters = import_module("asyncmy.converters")
    slow = converters.convert_datetime

    def moment(text: str) -> Any:
        try:
            return datetime.fromisoformat(text)
        except ValueError:  # such as a zero date
            return slow(text)

    times = [kind for kind, convert in converters.conversions.items() if convert is slow]
    return {**converters.conversions, **dict.fromkeys(times, moment)}
