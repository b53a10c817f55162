"""The local clock for leases: monotonic, and also running while the machine is suspended."""

import time


def steady() -> float:
    """Return seconds since an arbitrary start, suspended time included: a suspended machine loses its leases."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)
