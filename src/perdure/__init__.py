"""Durable execution for Python on the database people already have."""

__version__ = "0.1.0"
