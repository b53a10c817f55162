"""Counts of the hot path that do not depend on how busy the machine is: instructions, calls, callbacks, statements."""
