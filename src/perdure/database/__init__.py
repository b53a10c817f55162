"""The databases, underneath the storage layer: connections, pools and transactions, dialects, statements, operations.

This is what an ORM or a database interface would be elsewhere. It knows no table and no workflow, and imports nothing
of `perdure.storage`.
"""
