"""The cost of metrics and traces."""
