"""Starting a run by the name of its workflow, whose code need not be in this process."""

import inspect
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, cast

from perdure.engine.api.client import Client, storage_of
from perdure.engine.api.handles import RunHandle
from perdure.engine.api.options import StartOptions
from perdure.engine.api.workflow import Workflow
from perdure.engine.history.codec import encode
from perdure.engine.history.hints import signature
from perdure.engine.replay.definitions import WORKFLOWS
from perdure.engine.starting import IfExists, StartRequest
from perdure.engine.worker.stuck import served_names
from perdure.errors import UnknownWorkflowError
from perdure.model import limits
from perdure.model.durations import Duration

SHOWN = 10  # names in the message of an error
_OWN = "perdure."  # prefix of the workflows of perdure itself, which are not started by name


async def start_by_name(
    client: Client,
    name: str,
    arguments: Mapping[str, Any],
    *,
    id: str | None = None,
    at: datetime | None = None,
    after: Duration | None = None,
    timeout: Duration | None = None,
    if_exists: IfExists = "return",
) -> RunHandle[Any]:
    """Start a run of the workflow with this name, with arguments by parameter; the options are those of `options()`.

    If the workflow is defined in this process, the arguments are JSON values for its type hints: a missing one raises
    `TypeError`, and a mismatch `SerializationError`. Otherwise they are stored as they are, and the worker that
    executes the run checks them. Raise `UnknownWorkflowError` for a name that this process, the live workers and the
    database do not know.
    """
    options = StartOptions(id, at, after, timeout, if_exists)
    data = encode(dict(arguments), what=f"the input of {name}")
    workflow = WORKFLOWS.get(name)
    if isinstance(workflow, Workflow):
        _check_complete(workflow, arguments)
        args, kwargs = workflow.signature.unbind(data)
        configured = workflow.options(id=id, at=at, after=after, timeout=timeout, if_exists=if_exists)
        return await configured.start(*args, **kwargs)
    await _check_known(client, name)
    limits.size(data, f"the input of {name}")
    request = StartRequest(
        name,
        data,
        id,
        at,
        cast("timedelta | None", options.after),
        if_exists,
        "",  # the source code is not here
        cast("timedelta | None", options.timeout),
        json.loads,
    )
    return client.get((await client.start(request))[1])


def _check_complete(workflow: Workflow[..., Any], arguments: Mapping[str, Any]) -> None:
    """Raise `TypeError` if a required argument is missing."""
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in signature(workflow.function).parameters.items():
        if parameter.default is parameter.empty and parameter.kind not in free and name not in arguments:
            raise TypeError(f"{workflow.name}() needs an argument {name!r}, which is missing in the input")


async def _check_known(client: Client, name: str) -> None:
    storage = storage_of(client)
    known = {*await storage.list_workflow_names(), *(await served_names(storage) or ())}
    if name not in known:
        listed = sorted(each for each in known if not each.startswith(_OWN))
        shown = ", ".join(listed[:SHOWN]) or "none"
        raise UnknownWorkflowError(
            f"workflow {name!r} is unknown: it is not defined in this process, no live worker serves it, and it has no "
            f"runs in this database; known are: {shown}{' …' if len(listed) > SHOWN else ''}"
        )
