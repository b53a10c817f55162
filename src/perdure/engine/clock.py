"""The clock of leases on this machine: it only goes forward, and also while the machine is suspended."""

import time


def steady() -> float:
    """Seconds since some moment. A laptop that slept has lost its leases, which the monotonic clock would not tell."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)
