"""Instructions of a whole process, as `perf stat` or callgrind counts them."""

import re
import shutil
import subprocess
from collections.abc import Sequence

EVENT = "instructions:u"


def tool() -> str | None:
    """Return what can count instructions here: perf, callgrind, or None. Many virtual machines hide the counters."""
    if shutil.which("perf") and _perf(["true"]) is not None:
        return "perf"
    return "callgrind" if shutil.which("valgrind") else None


def watched(tool: str, command: Sequence[str]) -> list[str]:
    """Return the command that executes another one under a tool, whose report goes to the standard error."""
    if tool == "perf":
        return ["perf", "stat", "-x,", "-e", EVENT, "--", *command]
    # Fair, because otherwise the thread of the event loop can keep SQLite's writer waiting without end.
    return ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", "--fair-sched=yes", *command]


def instructions_in(report: str) -> int | None:
    """Return the number of instructions in a tool's report, or None if it has none."""
    if found := re.search(r"^(\d+),[^\n]*instructions", report, re.MULTILINE):
        return int(found[1])
    if found := re.search(r"Collected : (\d+)", report):
        return int(found[1])
    return None


def _perf(command: Sequence[str]) -> int | None:
    done = subprocess.run(watched("perf", command), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return instructions_in(done.stderr)
