"""`perdure copy`: output, errors, interruption and the progress bar. What is copied is tested in tests/copying."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perdure import App, Client
from perdure.cli.commands.copy import copy
from perdure.copying import abort_copy, copy_database
from perdure.storage.stores import open_storage
from tests.cli.programs import Cli
from tests.cli.test_processes import _in_terminal
from tests.copying.rows import add_rows
from tests.support.storages import Database


async def test_copy_prints_what_was_moved(cli: Cli, file: Database, tmp_path: Path) -> None:
    await add_rows(file.url)
    arguments = ("copy", "--from", file.url, "--to", "sqlite:///target.db")
    planned = (await cli(*arguments, "--dry-run", "-o", "json")).json
    assert not (tmp_path / "target.db").exists()
    moved = (await cli(*arguments, "-o", "json")).json
    assert (planned["state"], planned["since"], moved["state"]) == ("planned", None, "moved")
    assert moved["rows"] == planned["rows"] == sum(each["rows"] for each in moved["tables"]) > 10
    assert moved["target"] == f"sqlite:///{tmp_path}/target.db"
    assert [each["name"] for each in moved["tables"]] == [each["name"] for each in planned["tables"]]
    assert {len(each["checksum"]) for each in moved["tables"]} == {32}
    assert (await cli(*arguments)).out.endswith(": nothing to do\n")
    refused = await cli("copy", "--from", file.url, "--abort", "-o", "json", code=1)
    assert refused.problem["code"] == "copy"
    released = await cli("copy", "--from", file.url, "--abort", "--force")
    assert released.out == f"sqlite:///{tmp_path}/perdure.db can be used again\n"
    async with Client(file.url) as client:
        await client.publish("jobs", 1)


async def test_dry_run_counts_in_a_table(cli: Cli, file: Database) -> None:
    await add_rows(file.url)
    lines = (await cli("copy", "--from", file.url, "--to", "sqlite:///target.db", "--dry-run")).out.splitlines()
    assert lines[0].split() == ["TABLE", "ROWS"]
    assert ["workflow_instances", "2"] in [line.split() for line in lines]
    assert lines[-1].startswith("would copy ")


async def test_errors_have_codes(cli: Cli, file: Database) -> None:
    to = ("--to", "sqlite:///target.db", "-o", "json")
    for arguments, code, name in (
        (("--from", file.url, "-o", "json"), 2, "cli.usage"),
        (("--from", file.url, *to, "--force"), 2, "cli.usage"),
        (("--from", file.url, *to, "--database", file.url), 2, "cli.usage"),
        (("--from", file.url, *to, "--abort", "--dry-run"), 2, "cli.usage"),
        (("--from", "oracle://host/x", *to), 2, "storage.configuration"),
        (("--from", "sqlite:///missing.db", *to), 2, "storage.configuration"),
        (("--from", "postgresql://ann:s3cret@127.0.0.1:1/x", *to), 4, "storage.unavailable"),
        (("--from", file.url, "--to", file.url, "-o", "json"), 1, "copy"),
    ):
        done = await cli("copy", *arguments, code=code)
        assert done.problem["code"] == name
        assert "s3cret" not in done.err
    async with App(file.url):
        assert "has live workers" in (await cli("copy", "--from", file.url, *to, code=1)).problem["detail"]


async def test_interrupted_copy_says_how_to_continue(
    cli: Cli, file: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_storage(f"sqlite:///{tmp_path}/target.db"):
        pass
    with closing(sqlite3.connect(tmp_path / "target.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # the copy cannot write before it is interrupted
        copying = asyncio.create_task(copy(source=file.url, target="sqlite:///target.db"))
        await asyncio.sleep(0)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        other.execute("ROLLBACK")
    assert capsys.readouterr().err == "interrupted: the same command continues the copy, and --abort undoes it\n"
    assert (await cli("copy", "--from", file.url, "--to", "sqlite:///target.db", "-o", "json")).json["state"] == "moved"


async def test_terminal_shows_the_progress(file: Database, tmp_path: Path) -> None:
    await add_rows(file.url)
    shown = _in_terminal(tmp_path, "copy", "--from", file.url, "--to", "sqlite:///target.db", TERM="xterm")
    assert "copying" in shown
    assert "comparing" in shown
    assert "moved" in shown.splitlines()[-1]


async def test_doctor_says_that_a_copy_keeps_others_from_writing(database: Database, cli: Cli) -> None:
    target = "sqlite:///target.db"

    async def found(url: str) -> tuple[str, str]:
        checks = (await cli("doctor", "-d", url, "-o", "json", code=1)).json["checks"]
        return next((each["found"], each["advice"]) for each in checks if each["check"] == "copy")

    def interrupt(_: object) -> None:
        raise RuntimeError("interrupted")

    try:
        await add_rows(database.url)
        with pytest.raises(RuntimeError, match="interrupted"):
            await copy_database(database.url, target, report=interrupt)
        for url in (database.url, target):
            text, advice = await found(url)
            assert text.startswith("perdure copies ")
            assert advice.startswith("repeat the command")
        await cli("copy", "--from", database.url, "--to", target)
        text, advice = await found(database.url)
        assert text.startswith("perdure moved this database to ")
        assert advice == "use the URL of the other database"
        checks = (await cli("doctor", "-d", target, "-o", "json", code=0)).json["checks"]
        assert "copy" not in [each["check"] for each in checks]
    finally:
        await abort_copy(database.url, force=True)  # other tests use the same database
