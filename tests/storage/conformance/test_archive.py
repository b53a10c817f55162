"""The aggregate `archive` on every backend."""

from perdure.testing.conformance.archive import *  # noqa: F403
