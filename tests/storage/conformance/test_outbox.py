"""The aggregate `outbox` on every backend."""

from perdure.testing.conformance.outbox import *  # noqa: F403
from perdure.testing.conformance.tables.outbox import *  # noqa: F403
