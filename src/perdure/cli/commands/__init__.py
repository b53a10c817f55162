"""The commands: one module for each, or for a small group. A command returns its exit code, or None for 0."""
