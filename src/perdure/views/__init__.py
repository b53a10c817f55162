"""What people are shown of runs: searches, and why a run waits."""
