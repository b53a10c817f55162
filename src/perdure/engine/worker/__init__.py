"""The worker: background tasks that find, execute and look after runs."""
