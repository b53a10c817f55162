"""The body of a workflow and its replay from a history. No I/O and no clock."""
