"""Provide what tests of durable code need; the library itself imports nothing from here."""

from perdure.testing.app import TestApp
from perdure.testing.clock import TestClock
from perdure.testing.completion_order import any_order
from perdure.testing.crashes import CrashReport, crash_everywhere
from perdure.testing.exporting import export_history, history_of
from perdure.testing.history import History, HistoryRow
from perdure.testing.replaying import Replayed, replay
from perdure.testing.snapshots import assert_snapshot
from perdure.testing.stubs import Call, Stub
from perdure.testing.upgrade import Checked, UpgradeProblem, UpgradeReport, check_upgrade, export_histories

__all__ = [
    "Call",
    "Checked",
    "CrashReport",
    "History",
    "HistoryRow",
    "Replayed",
    "Stub",
    "TestApp",
    "TestClock",
    "UpgradeProblem",
    "UpgradeReport",
    "any_order",
    "assert_snapshot",
    "check_upgrade",
    "crash_everywhere",
    "export_histories",
    "export_history",
    "history_of",
    "replay",
]
