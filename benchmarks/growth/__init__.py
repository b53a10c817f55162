"""How the cost of one run, step, wait or event changes as there are more of them: `make bench-growth`."""
