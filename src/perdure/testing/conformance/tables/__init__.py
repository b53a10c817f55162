"""Test what a storage writes to the tables of perdure, and what it makes of rows that Edda and Romancy wrote.

These tests run SQL, so they are for the storages of perdure and not part of the contract. One module per aggregate;
the fixture `sql` provides the tables.
"""
