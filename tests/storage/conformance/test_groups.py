"""The aggregate `groups` on every backend."""

from perdure.testing.conformance.groups import *  # noqa: F403
