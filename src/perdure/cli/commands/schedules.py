"""`perdure schedules`."""

from perdure.cli.apps import import_workflows
from perdure.cli.exits import UsageError
from perdure.cli.opening import reading
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Column, Output, times
from perdure.inspection import list_schedules, schedule_document

COLUMNS = (
    Column("workflow", is_whole=True),
    Column("cron", is_whole=True),
    Column("zone"),
    times("next_at"),
    times("last_at"),
    Column("last_run", is_whole=True, rank=2),
    Column("last_status", is_whole=True, rank=1),
)


async def schedules(*, common: Common = COMMON) -> None:
    """List the scheduled (cron) workflows of the app with their last and next ticks. Schedules are part of the code."""
    if not import_workflows(common):
        raise UsageError(
            'schedules are part of the code: pass --app module, or write app = "…" under [tool.perdure] in '
            "pyproject.toml"
        )
    async with reading(common) as client:
        found = [schedule_document(each) for each in await list_schedules(client)]
    Output(common).listing("schedules", found, COLUMNS, empty="no workflow has a schedule (cron=)")
