"""The aggregate `stuck` on every backend."""

from perdure.testing.conformance.stuck import *  # noqa: F403
