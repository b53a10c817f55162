"""What a run records: typed rows, values as JSON, digests of calls, errors."""
