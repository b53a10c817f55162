"""Records, states and limits: pure data, no input or output."""
