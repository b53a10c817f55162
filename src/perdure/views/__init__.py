"""What people are shown of runs, on the command line and in the dashboard: searches, and why a run waits."""
