"""Crash a scenario at every commit of its worker, and compare what comes of it with the undisturbed run."""

from perdure.testing.crashes.everywhere import CrashReport, crash_everywhere

__all__ = ["CrashReport", "crash_everywhere"]
