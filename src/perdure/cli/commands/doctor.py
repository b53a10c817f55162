"""`perdure doctor`."""

from dataclasses import asdict

from perdure.cli import exits
from perdure.cli.diagnosis import Check, diagnose
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Column, Output, escaped
from perdure.cli.settings import database_url

COLUMNS = (
    Column("state", is_whole=True),
    Column("check", is_whole=True),
    Column("found"),
)


async def doctor(*, common: Common = COMMON) -> int:
    """Check versions, settings, clocks, migrations, indexes, workers and stuck work; the exit code is 1 for problems.

    Nothing is changed. The exit code is 4 if the database cannot be reached.
    """
    found, is_reachable = await diagnose(database_url(common))
    output = Output(common)
    output.listing("checks", [asdict(check) for check in found], COLUMNS)
    if output.is_table and common.fields is None:
        for check in found:
            if check.advice is not None:  # whole: the table is cut to the width of the terminal
                output.line(f"\n{check.check}: {escaped(check.found)}\n  {escaped(check.advice)}")
    if not is_reachable:
        return exits.UNAVAILABLE
    return exits.FAILED if any(_is_bad(check) for check in found) else exits.OK


def _is_bad(check: Check) -> bool:
    return check.state == "problem"
