"""Programs that run in forks of one process: it has imported perdure, which takes a new process half a second."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

# A fork leaves the loop and executes the program as `python -c` does: in `__main__`, and the process ends with it.
_SERVER = """
import gc, json, os, sys
import perdure, perdure.cli.main, perdure.errors, perdure.storage, perdure.testing

gc.collect()
gc.freeze()  # else each fork would look at all that was imported, and so copy it, when it ends

def next_program():
    for line in sys.stdin:
        code, folder, outputs = json.loads(line)
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            for number, path in enumerate((os.devnull, *outputs)):
                file = os.open(path, os.O_RDWR | os.O_CREAT)
                os.dup2(file, number)
                os.close(file)
            return code
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return ""

exec(compile(next_program(), "<string>", "exec"))
"""


@dataclass(frozen=True)
class Done:
    """What a program printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


class Forks:
    """A process that forks for each program; a warning is an error."""

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._server.pid, signal.SIGKILL)  # also a program that did not end
        self._server.communicate()

    def run(self, code: str, folder: Path, output: Path) -> Done:
        """Run a program in a folder until its end; `output` is a folder for what it prints."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        files = [output / "stdout", output / "stderr"]
        print(json.dumps([code, str(folder), list(map(str, files))]), file=self._server.stdin, flush=True)
        answer = self._server.stdout.readline()
        assert answer, "the process that forks has ended"
        return Done(int(answer), *(file.read_text("utf-8") for file in files))
