"""The aggregate `delivery` on every backend."""

from perdure.testing.conformance.delivery import *  # noqa: F403
