"""Provide what tests of durable code need; the library itself imports nothing from here."""

from perdure.testing.exporting import export_history, history_of
from perdure.testing.history import History, HistoryRow
from perdure.testing.replaying import Replayed, replay
from perdure.testing.snapshots import assert_snapshot
from perdure.testing.upgrade import Checked, UpgradeProblem, UpgradeReport, check_upgrade, export_histories

__all__ = [
    "Checked",
    "History",
    "HistoryRow",
    "Replayed",
    "UpgradeProblem",
    "UpgradeReport",
    "assert_snapshot",
    "check_upgrade",
    "export_histories",
    "export_history",
    "history_of",
    "replay",
]
