"""Define records, states and limits: pure data, without I/O."""
