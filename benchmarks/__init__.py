"""Measurements, run by hand: `make bench-storage`."""
