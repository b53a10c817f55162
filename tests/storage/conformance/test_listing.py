"""The aggregate `listing` on every backend."""

from perdure.testing.conformance.listing import *  # noqa: F403
from perdure.testing.conformance.tables.listing import *  # noqa: F403
