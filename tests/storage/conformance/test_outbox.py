"""The aggregate `outbox` on every backend."""

from perdure.testing.conformance.outbox import *  # noqa: F403
