"""The aggregate `workers` on every backend."""

from perdure.testing.conformance.workers import *  # noqa: F403
