"""The aggregate `timers` on every backend."""

from perdure.testing.conformance.tables.timers import *  # noqa: F403
from perdure.testing.conformance.timers import *  # noqa: F403
