"""Compare the storage layer with the same work written by hand on the bare drivers, side by side on one machine."""
