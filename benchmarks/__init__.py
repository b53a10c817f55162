"""Measure performance, by hand: `make bench-storage`."""
