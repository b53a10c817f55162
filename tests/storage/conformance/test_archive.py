"""The aggregate `archive` on every backend."""

from perdure.testing.conformance.archive import *  # noqa: F403
from perdure.testing.conformance.tables.archive import *  # noqa: F403
