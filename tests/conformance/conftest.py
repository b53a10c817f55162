"""The conformance suite on every backend: SQLite in a file and in memory, PostgreSQL, MySQL or MariaDB."""

import pytest

pytest.register_assert_rewrite("perdure.testing.conformance")
