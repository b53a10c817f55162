"""Compare the speed of two trees of this repository in one run: `make bench-compare REV=…`."""
