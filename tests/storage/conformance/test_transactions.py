"""The aggregate `transactions` on every backend."""

from perdure.testing.conformance.tables.transactions import *  # noqa: F403
from perdure.testing.conformance.transactions import *  # noqa: F403
