"""The aggregate `instances` on every backend."""

from perdure.testing.conformance.instances import *  # noqa: F403
