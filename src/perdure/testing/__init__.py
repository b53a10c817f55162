"""Provide what tests of durable code need; the library itself imports nothing from here."""
