"""Durations as people read them: `320 ms`, `2 d 4 h`."""

from datetime import timedelta


def short(duration: timedelta | float) -> str:
    """Return a duration in at most two units: `320 ms`, `4.2 s`, `3 min 20 s`, `2 d 4 h`."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if seconds < 0:
        return f"-{short(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    for name, size, lesser, part in (("min", 60, "s", 1), ("h", 3600, "min", 60), ("d", 86400, "h", 3600)):
        if seconds < size * (60 if name == "min" else 24) or name == "d":
            whole, rest = divmod(round(seconds / part), size // part)
            return f"{whole:,} {name} {rest} {lesser}" if rest and whole < 100 else f"{whole:,} {name}"
    raise AssertionError("days are the last unit")
