"""Statements, round trips, rows and log bytes per operation, as the databases count them."""
