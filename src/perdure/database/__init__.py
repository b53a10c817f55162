"""Connect to the databases: connections, pools, transactions, dialects, statements and operations.

This layer takes the place of an ORM. It knows no table and no workflow, and imports nothing of `perdure.storage`.
"""
