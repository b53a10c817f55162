"""The table of commands."""

import importlib
import re
from pathlib import Path

import pytest

from perdure.cli.table import COMMANDS, DEFAULTS, GROUPS
from tests.cli.programs import Cli

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
async def test_command_has_help_with_an_example(cli: Cli, command: tuple[str, str, str, str]) -> None:
    name, target, text, example = command
    module, _, function = target.partition(":")
    assert callable(getattr(importlib.import_module(f"perdure.cli.commands.{module}"), function))
    shown = " ".join((await cli(*name.split(), "--help")).out.split())
    assert text in shown
    assert f"Example: {' '.join(example.split())}" in shown
    assert example.startswith(f"perdure {name.removesuffix(' show')}")


def test_examples_can_be_typed_into_a_shell() -> None:
    for command in COMMANDS:
        unquoted = re.sub(r"'[^']*'", "", command.example)
        redirected = unquoted.replace(" > ", " ") if command.name in ("migrate dump-sql", "completion") else unquoted
        assert not re.search(r"""[<>?*{}()&|;$"`]""", redirected), command.example


def test_groups_have_a_default_command() -> None:
    groups = {command.name.partition(" ")[0] for command in COMMANDS if " " in command.name}
    assert groups == set(GROUPS) == set(DEFAULTS)
    assert {f"{group} {name}" for group, name in DEFAULTS.items()} <= {command.name for command in COMMANDS}


async def test_help_lists_all_commands_without_importing_them(cli: Cli) -> None:
    shown = (await cli("--help")).out
    for command in COMMANDS:
        assert re.search(rf"│ {command.name.partition(' ')[0]}\s", shown), command.name
    assert "runs" in (await cli()).out


async def test_completion_scripts_name_the_commands(cli: Cli) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "check-upgrade" in (await cli("completion", shell)).out


def test_page_documents_every_command() -> None:
    page = PAGE.read_text("utf-8")
    assert [command.name for command in COMMANDS if f"perdure {command.name.removesuffix(' show')}" not in page] == []
