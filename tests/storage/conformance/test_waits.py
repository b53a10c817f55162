"""The aggregate `waits` on every backend."""

from perdure.testing.conformance.waits import *  # noqa: F403
