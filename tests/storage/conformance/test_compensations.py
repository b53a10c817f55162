"""The aggregate `compensations` on every backend."""

from perdure.testing.conformance.compensations import *  # noqa: F403
