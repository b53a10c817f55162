"""The public names of the storage layer: sorted, documented, and complete."""

import ast
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

import perdure
import perdure.storage
from perdure import errors
from perdure.database.statements import DIALECTS, parse
from perdure.storage import MySQLStorage, PostgresStorage, SQLiteStorage, Storage, StorageError, open_storage
from perdure.storage.sql import load_statements

SOURCE = Path(perdure.storage.__file__).parent

SEED = """
initialize close db begin_transaction commit_transaction rollback_transaction in_transaction conn
register_post_commit_callback create_instance get_instance update_instance_status update_instance_activity
update_instance_output cancel_instance list_instances find_resumable_workflows try_acquire_lock release_lock
refresh_lock cleanup_stale_locks append_history get_history_paginated get_history_count register_timer_subscription
register_timer_subscription_and_release_lock find_expired_timers remove_timer_subscription add_outbox_event
get_pending_outbox_events mark_outbox_event_sent mark_outbox_event_failed increment_outbox_attempts
cleanup_old_outbox_events add_compensation get_compensations publish_to_channel subscribe_to_channel
unsubscribe_from_channel get_channel_subscription get_channel_mode register_channel_receive_and_release_lock
get_pending_channel_messages get_pending_channel_messages_for_instance claim_channel_message delete_channel_message
update_delivery_cursor get_delivery_cursor get_channel_subscribers_waiting clear_channel_waiting_state
deliver_channel_message deliver_channel_message_with_lock cleanup_old_channel_messages
find_expired_channel_subscriptions join_group leave_group get_group_members leave_all_groups try_acquire_system_lock
release_system_lock cleanup_expired_system_locks archive_history get_archived_history cleanup_instance_subscriptions
""".split()

BEYOND = """
fire_timer expire_channel_wait suspend complete_and_release recur_instance deliver_pending next_due_at refresh_locks
create_instances append_histories complete_instances append_and_complete suspend_instances publish_messages
list_outbox_events settle_outbox_events
requeue_outbox_event delete_instances wakeups beat_worker list_workers transaction detached get_instances
get_last_event acquire_locks claim_instances fire_timers expire_channel_waits next_work_at
get_channel_waits pending_waits back_off clear_stuck get_stuck list_stuck count_instances list_workflow_names list_ended
delete_ended get_events get_waits now pending_migrations define_workflows
""".split()


def methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


def test_contract_has_exactly_the_listed_methods() -> None:
    assert len(SEED) == 64
    assert methods(Storage) == {*SEED, *BEYOND}


@pytest.mark.parametrize("kind", [SQLiteStorage, PostgresStorage, MySQLStorage])
def test_every_storage_has_the_methods_and_signatures_of_the_contract(kind: type) -> None:
    switches = {"set_notify_enabled", "is_notify_enabled"} if kind is PostgresStorage else set()
    assert methods(kind) == methods(Storage) | switches
    for name in SEED + BEYOND:
        mine, theirs = (list(inspect.signature(getattr(of, name)).parameters.values()) for of in (kind, Storage))
        assert [(each.name, each.kind, each.default) for each in mine] == [
            (each.name, each.kind, each.default) for each in theirs
        ], name


def test_storage_implements_the_protocol() -> None:
    storage: Storage = open_storage("sqlite:///:memory:")  # mypy checks the types
    assert storage is not None


@pytest.mark.parametrize("package", [perdure, perdure.storage], ids=lambda package: package.__name__)
def test_public_names_are_sorted_and_documented(package: ModuleType) -> None:
    names = package.__all__
    assert names == sorted(names)
    for name in names:
        assert inspect.getdoc(getattr(package, name)), name


def test_every_error_is_public_documented_and_has_a_unique_code() -> None:
    page = (SOURCE.parents[2] / "docs" / "storage.md").read_text("utf-8")
    found = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, StorageError)]
    assert len({each.code for each in found}) == len(found)
    for each in found:
        assert each.__name__ in perdure.storage.__all__
        assert each is StorageError or f"`{each.code}`" in page


def test_every_method_of_the_contract_is_documented() -> None:
    for name in SEED + BEYOND:
        assert inspect.getdoc(getattr(Storage, name)), name


ANSWER = r"(?: -> \S+(?: \w+,?)*(?:(?<=,)\n-- +\w+(?:, \w+)*,?)*)?"

FILES = [file for file in sorted((SOURCE / "sql").glob("*.sql")) if file.stem != "pieces"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_statement_is_used_described_and_renders(file: Path) -> None:
    code = "\n".join(path.read_text("utf-8") for path in [*SOURCE.glob("*.py"), *SOURCE.glob("migrations/*.py")])
    text = file.read_text("utf-8")
    for statement in load_statements(file.stem):
        name = statement.name.partition(".")[2]
        assert re.search(rf"\bS\.{name}\b|\b[a-z_]+\.S\.{name}\b|[\"']{name}[\"']|\.{name}\(", code), statement.name
        assert re.search(rf"^-- {name}{ANSWER}\n-- \S", text, re.MULTILINE), f"{statement.name} has no description"
        for dialect in statement.texts:
            if dialect:
                assert re.search(rf"^-- {name} \[{dialect}\]\n-- Differs", text, re.MULTILINE), statement.name


def test_every_delete_of_listed_rows_names_its_index() -> None:
    """Otherwise MySQL may read the whole table, and wait for locked rows that are not in the list."""
    parts = [part for file in FILES for each in load_statements(file.stem) for part in each.parts("mysql")]
    listed = [part for part in parts if part.startswith("DELETE") and "{any(" in part]
    assert listed
    assert [part for part in listed if not part.startswith("DELETE {from_index(")] == []


def test_every_shared_sql_piece_is_documented_and_used_more_than_once() -> None:
    text, pieces = "\n".join(file.read_text("utf-8") for file in FILES), SOURCE / "sql" / "pieces.sql"
    for piece in load_statements("pieces"):
        name = piece.name.partition(".")[2]
        assert len(re.findall(rf"\{{{name}(?:\(\w\))?\}}", text)) > 1, f"{piece.name} serves no two statements"
        assert re.search(rf"^-- {name}{ANSWER}\n-- \S", pieces.read_text("utf-8"), re.MULTILINE), piece.name


@pytest.mark.parametrize(
    "text",
    [
        "-- a\n-- A placeholder in a literal.\nSELECT ':x seconds'",
        "-- a\n-- Empty.\n",
        "-- a [mysql]\n-- An override of nothing.\nSELECT 1",
        "-- a\n-- Unknown dialect.\nSELECT 1\n\n-- a [oracle]\n-- Differs.\nSELECT 2",
        "-- a\n-- Twice.\nSELECT 1\n\n-- a\n-- Twice.\nSELECT 2",
    ],
)
def test_invalid_statement_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a"):
        parse("file", text)


def test_sql_is_only_in_sql_files() -> None:
    """SQL statements stand in .sql files; the dialects and backends have pieces."""
    verb = re.compile(r"^\s*(?:(?i:SELECT|INSERT INTO|UPDATE|DELETE FROM)|CREATE|DROP|SET|BEGIN)\s")
    for path in [*SOURCE.glob("*.py"), *SOURCE.glob("migrations/*.py")]:
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        patterns = [
            node.args[0] for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile"
        ]
        for node in nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in patterns:
                assert not verb.match(node.value), f"{path.name}: {node.value[:60]}"
    assert DIALECTS == ("sqlite", "postgresql", "mysql")


def test_database_layer_does_not_import_the_storage_layer() -> None:
    for path in (SOURCE.parent / "database").rglob("*.py"):
        assert "perdure.storage" not in path.read_text("utf-8").replace("`perdure.storage`", "").replace(
            '"perdure.storage"', ""
        ), path
