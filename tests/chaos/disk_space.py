"""A small file system that can be filled up."""

import ctypes
import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MIB = 1 << 20
_DETACH = 2


class Space:
    """A mounted file system with a file in it that takes the room."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, left: int) -> None:
        """Take all but so many bytes; others may take some meanwhile."""
        with self._ballast.open("ab") as ballast:
            while (room := self.room() - left) > 0:
                try:
                    os.posix_fallocate(ballast.fileno(), 0, room)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                else:
                    return

    def room(self) -> int:
        """How many bytes are free."""
        status = os.statvfs(self.folder)
        return status.f_bavail * status.f_bsize

    def free(self) -> None:
        """Release it."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_space(size: int) -> Iterator[Space]:
    """In memory, for a process in a mount namespace of its own: it goes with it, however it ends."""
    with tempfile.TemporaryDirectory(prefix="perdure-disk-", dir="/tmp") as place:
        os.chmod(place, 0o755)
        # Not by the program `mount`, which asks for root where the right to mount is enough.
        _call("mount", b"perdure", os.fsencode(place), b"tmpfs", 0, f"size={size},mode=1777".encode())
        try:
            yield Space(Path(place))
        finally:
            _call("umount2", os.fsencode(place), _DETACH)


def _call(name: str, *arguments: bytes | int) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
