"""The aggregate `transactions` on every backend."""

from perdure.testing.conformance.transactions import *  # noqa: F403
