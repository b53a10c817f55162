"""A run under one lease: its steps, waits, rollback and end."""
