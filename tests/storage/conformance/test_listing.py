"""The aggregate `listing` on every backend."""

from perdure.testing.conformance.listing import *  # noqa: F403
