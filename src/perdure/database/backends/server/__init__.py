"""Provide what PostgreSQL and MySQL have in common: connections, retries, sessions and executors.

A statement whose connection broke may have been executed or not. Before the commit was sent nothing was written, and
the operation is retried. After that the result is read back if the operation defines how, or the operation is retried
if it is idempotent; otherwise `CommitUnknownError` is raised. No operation is blindly repeated.
"""
