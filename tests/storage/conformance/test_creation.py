"""The creation of instances with their first rows, on every backend."""

from perdure.testing.conformance.creation import *  # noqa: F403
