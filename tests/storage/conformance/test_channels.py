"""The aggregate `channels` on every backend."""

from perdure.testing.conformance.channels import *  # noqa: F403
