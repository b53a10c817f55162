"""`perdure check-upgrade`."""

from dataclasses import asdict
from typing import Annotated

from cyclopts import Parameter

from perdure.cli import exits
from perdure.cli.apps import codec_of, load_module
from perdure.cli.commands.worker import chosen_app
from perdure.cli.options import COMMON, Common
from perdure.cli.output import Output, escaped
from perdure.cli.settings import database_url
from perdure.inspection.documents import Document


async def check_upgrade(
    *modules: Annotated[str, Parameter(help="Modules that define the workflows (default: that of --app).")],
    sample: Annotated[int, Parameter(help="Maximum number of runs of each workflow that are replayed.")] = 20,
    common: Common = COMMON,
) -> int:
    """Replay a sample of the runs that have not ended against the code of modules; nothing is written or executed."""
    from perdure.testing.upgrade import check_upgrade

    for name in modules or (chosen_app(None, common, "check-upgrade"),):
        load_module(name.partition(":")[0])
    with exits.usage_errors():
        report = await check_upgrade(database_url(common), sample=sample, codec=codec_of(common, *modules))
    document: Document = {
        "ok": report.ok,
        "checked": {name: asdict(each) for name, each in report.checked.items()},
        "problems": [asdict(each) for each in report.problems],
        "unknown": dict(report.unknown),
    }
    Output(common).single(document, lambda: "\n".join(map(escaped, str(report).splitlines())))
    return exits.OK if report.ok else exits.FAILED
