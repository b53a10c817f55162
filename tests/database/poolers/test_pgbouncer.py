"""The storage behind PgBouncer in transaction mode, where no prepared statement or session setting is kept."""

from perdure.testing.conformance.channels import *  # noqa: F403
from perdure.testing.conformance.delivery import *  # noqa: F403
from perdure.testing.conformance.locks import *  # noqa: F403
from perdure.testing.conformance.tables.channels import *  # noqa: F403
from perdure.testing.conformance.tables.delivery import *  # noqa: F403
from perdure.testing.conformance.tables.transactions import *  # noqa: F403
from perdure.testing.conformance.transactions import *  # noqa: F403
