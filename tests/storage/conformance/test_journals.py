"""The aggregate `journals` on every backend."""

from perdure.testing.conformance.journals import *  # noqa: F403
