"""The room `compensations` on every backend."""

from perdure.testing.conformance.compensations import *  # noqa: F403
