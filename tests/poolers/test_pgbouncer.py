"""The storage behind PgBouncer in transaction mode: no named statement, no session setting survives there."""

from perdure.testing.conformance.channels import *  # noqa: F403
from perdure.testing.conformance.delivery import *  # noqa: F403
from perdure.testing.conformance.locks import *  # noqa: F403
from perdure.testing.conformance.outbox import *  # noqa: F403
from perdure.testing.conformance.tables.channels import *  # noqa: F403
from perdure.testing.conformance.tables.delivery import *  # noqa: F403
from perdure.testing.conformance.tables.outbox import *  # noqa: F403
from perdure.testing.conformance.tables.transactions import *  # noqa: F403
from perdure.testing.conformance.transactions import *  # noqa: F403
