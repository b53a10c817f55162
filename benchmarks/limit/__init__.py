"""What the disk, the databases and their drivers allow, without the engine: `make bench-limit`."""
