"""The JSON of each command has exactly the fields that docs/cli.md documents."""

import re
from pathlib import Path
from typing import Any

import pytest

from perdure import App, OutboxEvent
from perdure.cli.table import COMMANDS
from perdure.engine.replay.definitions import WORKFLOWS
from tests.cli.programs import Cli
from tests.cli.shop import order
from tests.cli.test_commands import PAGE
from tests.cli.test_reading import fill
from tests.support.storages import Database

# Each command, the line of the page that documents it, and the name of its list.
CALLS: tuple[tuple[str, str, str], ...] = (
    ("runs --count", "runs --count", ""),
    ("runs", "runs", "runs"),
    ("show o-1", "runs", ""),
    ("show o-1", "show", "steps"),
    ("why o-1", "why", ""),
    ("trace o-1", "show", "steps"),
    ("history o-2", "history", "history"),
    ("history export o-2 o-2.json", "history export", "files"),
    ("history sample sampled", "history export", "files"),
    ("init my-shop", "history export", "files"),
    ("""start cli.pack --input {"order_id":"A-9"} --id o-9""", "start", ""),
    ("""send cli.paid {"order_id":"A-9"}""", "send", ""),
    ("publish cli.news 1", "publish", ""),
    ("cancel o-9", "cancel retry by id", "runs"),
    ("retry o-2", "cancel retry by id", "runs"),
    ("cancel --filter state:running --dry-run", "cancel retry by filter", ""),
    ("retry --filter state:failed --dry-run", "cancel retry by filter", ""),
    ("workers", "workers", "workers"),
    ("outbox list", "outbox list", "events"),
    ("outbox retry e-1", "outbox retry", "events"),
    ("schedules --app cli_yearly", "schedules", "schedules"),
    ("cleanup --finished 30d --dry-run", "cleanup", ""),
    ("migrate status", "migrate", "migrations"),
    ("migrate up", "migrate up", ""),
    ("migrate dump-sql", "migrate dump-sql", "migrations"),
    ("doctor", "doctor", "checks"),
    ("check-upgrade tests.cli.shop", "check-upgrade", ""),
    ("top", "top", ""),
    ("bench --runs 2 --steps 1", "bench", ""),
)
# They run until a signal, print another format, have the columns of a statement, or are called in other tests.
OTHERS = {"worker", "serve", "dashboard", "relay", "dev", "completion", "sql", "copy", "demo"}


def documented() -> dict[str, set[str]]:
    """Return the fields of each line of the table: the names in backticks that do not stand in parentheses."""
    table = PAGE.read_text("utf-8").partition("| commands | fields |\n|---|---|\n")[2].partition("\n\n")[0]
    found: dict[str, set[str]] = {}
    for line in table.splitlines():
        commands, fields = (re.sub(r"\([^)]*\)", "", cell) for cell in line.strip("| ").split(" | ", 1))
        rest = re.findall(r"`[^`]*`((?: by \w+)?)", commands)[-1]
        names = re.findall(r"`([^`]*)`", commands)
        key = " ".join(names) + rest if rest else names[0]
        found.setdefault(key, set(re.findall(r"`(\w+)`", fields.partition(". In `trace`")[0])))
    return found


def test_table_of_the_page_has_every_command() -> None:
    called = {" ".join(call.split()[:2]) for call, *_ in CALLS} | {call.split()[0] for call, *_ in CALLS} | OTHERS
    assert [command.name for command in COMMANDS if command.name.removesuffix(" show") not in called] == []


async def test_json_has_the_documented_fields(file: Database, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    await fill(file)
    monkeypatch.setenv("PERDURE_URL", file.url)
    Path("cli_yearly.py").write_text(
        "from perdure import workflow\n"
        "@workflow(name='cli.yearly', cron='0 3 1 1 *')\n"
        "async def yearly() -> None: ...\n"
    )
    fields, wrong = documented(), dict[str, Any]()
    async with App(file.url, workflows=[order]):
        storage = await file.storage()
        await storage.add_outbox_event(OutboxEvent("e-1", "order.paid", "shop", b"{}"))
        await storage.mark_outbox_event_failed("e-1", error="no route")
        try:
            for call, line, name in CALLS:
                done = await cli(*call.split(), "-o", "json")
                found = done.json[name] if name else done.json
                first = found[0] if isinstance(found, list) else found
                extra = {"steps"} if call.startswith("show") and not name else {"run", "is_cut"} & first.keys()
                if first.keys() - extra != fields[line] - extra:
                    wrong[call] = first.keys() ^ fields[line]
        finally:
            WORKFLOWS.pop("cli.yearly", None)  # no other test may start it
    assert wrong == {}
