"""The local clock for leases: monotonic, and also running while the machine is suspended."""

import time

_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def steady() -> float:
    """Return seconds since an arbitrary start, suspended time included: a suspended machine loses its leases."""
    return time.monotonic() if _BOOT is None else time.clock_gettime(_BOOT)
