"""Integrate connections of the caller, and libraries that use ours.

`foreign` writes on a caller's own connection, `starts` starts a run there, and `shared` gives SQLAlchemy access to the
transaction of an activity. Each library is imported only when one of its connections is used.
"""
