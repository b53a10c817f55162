"""Measure performance, by hand: see the targets of the Makefile whose names begin with `bench`."""
