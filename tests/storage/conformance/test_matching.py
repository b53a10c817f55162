"""The aggregate `matching` on every backend."""

import pytest

from perdure.testing.conformance.matching import *  # noqa: F403
from perdure.testing.conformance.tables.matching import *  # noqa: F403

pytestmark = pytest.mark.timeout(180)  # thousands of messages on a busy machine
