"""W23: leases, timers and times are the same on servers whose zone is not UTC."""

from perdure.testing.conformance.locks import *  # noqa: F403
from perdure.testing.conformance.tables.timers import *  # noqa: F403
from perdure.testing.conformance.timers import *  # noqa: F403
