"""Measure performance, by hand: `make bench`, `make bench-peers`, `make bench-storage`, `make bench-compare`."""
