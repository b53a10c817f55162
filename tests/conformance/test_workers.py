"""The room `workers` on every backend."""

from perdure.testing.conformance.workers import *  # noqa: F403
