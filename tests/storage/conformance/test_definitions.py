"""The aggregate `definitions` on every backend."""

from perdure.testing.conformance.definitions import *  # noqa: F403
from perdure.testing.conformance.tables.definitions import *  # noqa: F403
