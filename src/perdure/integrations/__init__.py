"""Integrate connections of the caller, and libraries that use ours. Importing this package registers them.

`connections` runs statements on a caller's own connection, `caller_transactions` starts a run there, and `sqlalchemy`
gives SQLAlchemy access to the transaction of an activity. Each library is imported only when it is used.
"""

from importlib import import_module

from perdure.engine.api import in_transaction
from perdure.engine.worker import sharing
from perdure.integrations.caller_transactions import CallerConnection

in_transaction.recognise_with(CallerConnection)
sharing.register("sqlalchemy", lambda: import_module("perdure.integrations.sqlalchemy"))
