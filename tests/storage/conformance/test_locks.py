"""The aggregate `locks` on every backend."""

from perdure.testing.conformance.locks import *  # noqa: F403
