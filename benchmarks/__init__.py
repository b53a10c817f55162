"""Measure performance, by hand: `make bench-storage`, `make bench-compare`."""
