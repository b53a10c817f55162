"""`perdure why`."""

from typing import Annotated

from cyclopts import Parameter

from perdure.cli.opening import reading
from perdure.cli.options import COMMON, WATCHING, Common, Watching
from perdure.cli.output import Output, escaped
from perdure.cli.watching import repeat
from perdure.engine.api.client import storage_of
from perdure.inspection import explain, list_workers
from perdure.inspection.documents import stamp
from perdure.model.states import WorkflowStatus


async def why(
    id: Annotated[str, Parameter(help="Id of the run.")],
    /,
    *,
    watching: Watching = WATCHING,
    common: Common = COMMON,
) -> None:
    """Say what a run waits for, since when, which worker holds it, and what would release it."""
    async with reading(common) as client:

        async def show(output: Output) -> bool:
            run, workers = await client.info(id), await list_workers(client)
            may_have_left = run.status in (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED)
            steps = await client.get(id).steps() if may_have_left else []
            reason = explain(run, workers, await storage_of(client).now(), steps)
            document = {
                "id": run.id,
                "workflow": run.workflow,
                "status": run.status.value,
                "situation": reason.situation,
                "since": stamp(reason.since),
                "until": stamp(reason.until),
                "worker": reason.worker,
                "text": reason.text,
            }
            output.single(document, lambda: escaped(reason.text))
            return reason.situation != "ended"

        await repeat(watching, common, show)
