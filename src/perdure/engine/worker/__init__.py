"""The worker: background tasks that find, execute and monitor runs."""
