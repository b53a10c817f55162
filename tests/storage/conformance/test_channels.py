"""The aggregate `channels` on every backend."""

from perdure.testing.conformance.channels import *  # noqa: F403
from perdure.testing.conformance.tables.channels import *  # noqa: F403
