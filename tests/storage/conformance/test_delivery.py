"""The aggregate `delivery` on every backend."""

from perdure.testing.conformance.delivery import *  # noqa: F403
from perdure.testing.conformance.tables.delivery import *  # noqa: F403
