"""The listener: passes notifications on to the parts of a worker that they concern."""

from perdure.engine.worker.executor import RunExecutor
from perdure.engine.worker.heartbeat import Heartbeat
from perdure.engine.worker.host import WorkerHost
from perdure.engine.worker.notifications import listen
from perdure.engine.worker.relay import OutboxRelay
from perdure.engine.worker.supervision import Supervised
from perdure.model.records import WakeUp
from perdure.storage.wakeups import MESSAGE, OUTBOX, RESUMABLE

SCAN = "scan"  # the kind of a notification that stands for any others, which may have been lost


class Listener:
    """Wakes the work loop, and lets the runs of this worker poll for their messages."""

    def __init__(
        self, host: WorkerHost, executor: RunExecutor, heartbeat: Heartbeat, relay: OutboxRelay | None
    ) -> None:
        self._host = host
        self._executor = executor
        self._heartbeat = heartbeat
        self._relay = relay

    async def run(self, task: Supervised) -> None:
        """Listen for notifications."""
        await listen(self._host.storage, task, self._heard, self._host.unavailable)

    def _heard(self, hint: WakeUp) -> None:
        self._tell_work_loop(hint)
        self._host.results.hint(hint)
        if self._relay is not None and hint.kind in (OUTBOX, SCAN):
            self._relay.wake()
        if hint.kind == SCAN or hint.payload.get("reason") == "cancelled":
            self._heartbeat.nudge()
        if hint.kind != RESUMABLE:
            self._executor.hint()

    def _tell_work_loop(self, hint: WakeUp) -> None:
        """Wake the work loop, and name the channel or the run that the notification is about: it looks there first."""
        payload = hint.payload
        channel, run, name = payload.get("channel"), payload.get("instance_id"), payload.get("workflow_name")
        if hint.kind == MESSAGE and isinstance(channel, str):
            self._host.heard_message(channel)
        elif hint.kind == RESUMABLE and isinstance(run, str) and isinstance(name, str):
            self._host.heard_run(run, name)
        else:
            self._host.hint()
