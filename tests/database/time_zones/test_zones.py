"""Leases, timers and times are the same on servers whose time zone is not UTC."""

import pytest

from perdure.testing.conformance.locks import *  # noqa: F403
from perdure.testing.conformance.tables.timers import *  # noqa: F403
from perdure.testing.conformance.timers import *  # noqa: F403

pytestmark = pytest.mark.pitfall(23)
