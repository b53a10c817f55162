"""The ids of rows in a history: which step a row belongs to, and what it records.

A step has the id `<path>:<name>`: its path in the task tree of the body and the name of its call. Rows about a step
that are not its outcome have a suffix. Rows that belong to the run and not to a step start with `~`.

| id | row |
|---|---|
| `3:charge` | the outcome of the step |
| `3:charge!` | the start of an activity with a compensation |
| `3:charge#2` | the failure of attempt 2, before another attempt |
| `3:charge#2~` | the end of the pause after attempt 2 |
| `3:wait_event@` | an event that was sent to this run; without `@`, to all runs |
| `3:wait_event#2` | an event after one that did not match; only in rows of earlier versions |
| `~3`, `~state:3` | values that the body took, and a state that it set |
| `~undo:7` | the outcome of the compensation with the id 7, or of the compensation of a step |
"""

import re

OWN = "~"
BEGIN = "~begin"  # the timer of a run that starts later
DEADLINE = "~deadline"  # the timeout of the run
EXPIRED = "~expired"  # the end of that time
PARENT = "~parent"  # the run that waits for this one
HANDLED = "~on_failure"  # the outcome of the failure handler
UNTIL = "~until:"  # with the id of a wait: when its timeout ends
UNDO = "~undo:"
RUN_FAILED = "workflow_failed"
RUN_CANCELLED = "workflow_cancelled"
CHILD = "child"  # the name of the step that starts a child
TIMER = "timer"
CHILD_END = "end."  # prefix of the name of the step that waits for the end of a child

_ROUND = re.compile(r"(.*:(?:wait_event|receive))#([0-9]+)\Z", re.DOTALL)


def step(path: str, name: str) -> str:
    """Return the id of a step."""
    return f"{path}:{name}"


def path_of(step: str) -> str:
    """Return the path of a step: `3` for `3:charge`."""
    return step.partition(":")[0]


def name_of(step: str) -> str:
    """Return the name of the activity or call of a step: `charge` for `3:charge`."""
    return step.partition(":")[2]


def start_of(step: str) -> str:
    """Return the id of the row that records the start of an activity with a compensation."""
    return f"{step}!"


def attempt_of(step: str, attempt: int) -> str:
    """Return the id of the row that records a failed attempt."""
    return f"{step}#{attempt}"


def pause_after(step: str, attempt: int) -> str:
    """Return the id of the timer for the pause after a failed attempt, and of the row that records its end."""
    return f"{step}#{attempt}~"


def message_of(step: str, round: int, place: int) -> str:
    """Return the id of the row that records a message of the wait's channel at `place` (0 is the first)."""
    return (step if round == 1 else f"{step}#{round}") + "@" * place


def undo_of(step: object) -> str:
    """Return the id of the row that records a compensation, by the id of the compensation or of its step."""
    return f"{UNDO}{step}"


def until_of(step: str) -> str:
    """Return the id of the row that records when the timeout of a wait ends."""
    return f"{UNTIL}{step}"


def split_attempt(id: str) -> tuple[str, int]:
    """Return the step and the attempt of the row of a failed attempt."""
    step, _, number = id.rpartition("#")
    return step, int(number)


def split_pause(id: str) -> tuple[str, int] | None:
    """Return the step and the attempt of the row of a pause; None for another row."""
    step, _, number = id.rpartition("#")
    return (step, int(number[:-1])) if step and number.endswith("~") and number[:-1].isdecimal() else None


def split_message(id: str) -> tuple[str, int, int]:
    """Return the step, the round and the place of the row of a message or a timeout."""
    rest = id.rstrip("@")
    found = _ROUND.match(rest)
    step, round = (rest, 1) if found is None else (found[1], int(found[2]))
    return step, round, len(id) - len(rest)


def step_of(id: str) -> str:
    """Return the step that a row, a timer or a wait belongs to; the id itself for a row of the run."""
    if id.startswith(OWN):
        return id
    if (pause := split_pause(id)) is not None:
        return pause[0]
    return id[:-1] if id.endswith("!") else split_message(id)[0]


# Channels for the ends of children, and the ids of their runs.

CHILD_ENDS = "~end/"  # prefix of the channels


def end_name(generation: str | None, path: str) -> str:
    """Return the name of the channel for the end of the child that a generation starts in the step at `path`."""
    number = generation.rpartition("~")[2] if generation else "0"
    return f"{CHILD_ENDS}{number}/{path}"


def end_channel(parent: str, generation: str | None, path: str) -> str:
    """Return the stored channel for the end of a child, to which only the parent subscribes."""
    return f"{end_name(generation, path)}:{parent}"


def path_of_end(channel: str) -> str | None:
    """Return the path of the step that started a child, from its end channel; None for another channel."""
    if not channel.startswith(CHILD_ENDS):
        return None
    return channel.removeprefix(CHILD_ENDS).partition("/")[2].partition(":")[0]
