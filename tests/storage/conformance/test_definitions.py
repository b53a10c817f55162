"""The aggregate `definitions` on every backend."""

from perdure.testing.conformance.definitions import *  # noqa: F403
