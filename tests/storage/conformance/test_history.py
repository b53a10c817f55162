"""The aggregate `history` on every backend."""

from perdure.testing.conformance.history import *  # noqa: F403
