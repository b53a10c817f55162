"""Import asyncpg, the native driver, which an extra installs. No other module outside this package uses it."""

from importlib import import_module
from typing import Any

asyncpg: Any
try:
    asyncpg = import_module("asyncpg")
except ImportError:  # reported when a backend is created
    asyncpg = None
