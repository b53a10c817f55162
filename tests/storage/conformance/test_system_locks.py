"""The aggregate `system_locks` on every backend."""

from perdure.testing.conformance.system_locks import *  # noqa: F403
from perdure.testing.conformance.tables.system_locks import *  # noqa: F403
