"""The aggregate `matching` on every backend."""

from perdure.testing.conformance.matching import *  # noqa: F403
