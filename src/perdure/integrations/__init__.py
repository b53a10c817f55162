"""Integrations: connections that are not ours, and libraries that want ours.

`foreign` writes on a caller's own connection, `starts` starts a run there, and `shared` lends the transaction of an
activity to SQLAlchemy. Each library is imported only when one of its connections is there.
"""
