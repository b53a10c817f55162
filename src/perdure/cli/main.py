"""The command line: parse the arguments, run the command, and turn errors into messages and exit codes."""

import asyncio
import inspect
import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perdure.cli import exits
from perdure.cli.inputs import STDIN, STDIN_FILE
from perdure.cli.table import COMMANDS, DEFAULTS, GROUPS, READ_STDIN

if TYPE_CHECKING:
    from cyclopts import App
    from rich.console import Console

HELP_FLAGS = ("--help", "-h")
MISSING = 'the command line needs further packages: pip install "perdure[cli]"'
EPILOGUE = "Documentation: https://github.com/perdure/perdure/blob/main/docs/cli.md"


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code. Errors are printed without a traceback, unless `--debug` asks."""
    _prepare_streams()
    try:
        code = _run(_with_stdin(_with_defaults(list(arguments))))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the prompt of the shell does not stand behind ^C
        return exits.INTERRUPTED
    except BrokenPipeError:  # the reader has enough, such as `| head`
        _close_stdout()
        return exits.OK
    except Exception as error:
        return _report(error, arguments)


def _run(arguments: list[str]) -> int:
    try:
        from cyclopts import CycloptsError
    except ImportError as error:
        raise exits.CommandError(MISSING, code="cli.missing_extra") from error

    program = build()
    if not arguments or any(flag in arguments for flag in HELP_FLAGS):
        program.console = _console()
    try:
        command, bound, _ = program.parse_args(arguments, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        if arguments and arguments[0].startswith("-"):
            hint = f"{arguments[0]} is no command: options follow the command, as in `perdure runs --database URL`"
            raise exits.UsageError(hint) from error
        raise exits.UsageError(_sentence(error, arguments)) from error
    result = command(*bound.args, **bound.kwargs)
    if inspect.isawaitable(result):
        result = asyncio.run(_awaited(result))
    return result if isinstance(result, int) else exits.OK


async def _awaited(result: Any) -> Any:
    return await result


def build() -> "App":
    """Return the program with all commands; the modules of the commands are not imported yet."""
    from cyclopts import App

    from perdure import __version__

    program = App(
        name="perdure",
        help="Durable execution for Python: inspect, start and repair runs, and operate workers.",
        version=f"perdure {__version__}",
        version_flags=("--version", "-V"),
        help_format="plaintext",
        help_epilogue=EPILOGUE,
        result_action="return_value",
    )
    groups: dict[str, App] = {}
    for place, (name, target, text, example) in enumerate(COMMANDS):
        group, _, last = name.rpartition(" ")
        if group and group not in groups:
            groups[group] = App(name=group, help=GROUPS[group], version_flags=(), sort_key=place)
            program.command(groups[group])
        parent = groups[group] if group else program
        about = f"{text}\n\nExample: {example}"
        parent.command(f"perdure.cli.commands.{target}", name=last, help=about, version_flags=(), sort_key=place)
    return program


def _with_defaults(arguments: list[str]) -> list[str]:
    """Return the arguments with the default command of a group, if they name a group only: `history ID`."""
    if not arguments or arguments[0] not in DEFAULTS:
        return arguments
    known = [name.partition(" ")[2] for name, *_ in COMMANDS if name.startswith(f"{arguments[0]} ")]
    if len(arguments) > 1 and (arguments[1] in known or arguments[1] in HELP_FLAGS):
        return arguments
    return [arguments[0], DEFAULTS[arguments[0]], *arguments[1:]]


def _with_stdin(arguments: list[str]) -> list[str]:
    """Return the arguments with `@-` instead of `-`, which cyclopts would reject as an unknown option."""
    if not arguments or arguments[0] not in READ_STDIN:
        return arguments
    return [STDIN_FILE if each == STDIN else each for each in arguments]


def _sentence(error: Exception, arguments: Sequence[str]) -> str:
    from cyclopts import UnusedCliTokensError

    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return (
            f"{error.unused_tokens[0]!r} is one argument too many: `perdure {arguments[0]} --help` shows what the "
            "command takes"
        )
    return " ".join(str(error).split())


def _prepare_streams() -> None:
    """Let every text be printed: characters that the encoding of the locale lacks are escaped.

    A process without an output stream, such as `perdure runs >&-`, gets one that forgets everything.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _console() -> "Console":
    """Return what prints the help. Like all other output it may be closed by the reader, as in `perdure | head -1`."""
    from rich.console import Console

    class Help(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Help()


def _close_stdout() -> None:
    """Let nothing be written to the closed pipe when the interpreter exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report(error: Exception, arguments: Sequence[str]) -> int:
    if "--debug" in arguments:
        traceback.print_exception(error)
    found = exits.problem_of(error)
    print(exits.error_line(found, as_json=_asks_for_json(arguments)), file=sys.stderr)
    return found.exit_code


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether JSON is asked for, also by arguments that cannot be parsed."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=False)  # there may be no arguments
    return any(
        (flag in ("-o", "--output") and value.startswith("json"))
        or flag.startswith(("-ojson", "-o=json", "--output=json"))
        for flag, value in pairs
    )
