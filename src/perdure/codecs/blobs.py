"""Blob stores: where large values are kept outside the database."""

import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol, runtime_checkable

from perdure.errors import CodecError

_NAME = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True)
class Blob:
    """A stored blob: its name, and when it was stored last, in UTC."""

    name: str
    stored_at: datetime


@runtime_checkable
class BlobStore(Protocol):
    """Keeps bytes by name. Names are 64 hexadecimal digits. The methods are called in threads and may block."""

    def put(self, name: str, data: bytes) -> None:
        """Store bytes durably before it returns; a blob of this name has the same bytes and gets a new time."""

    def get(self, name: str) -> bytes | None:
        """Return the bytes, or None if there is no such blob."""

    def delete(self, name: str, stored_before: datetime) -> bool:
        """Delete a blob unless it was stored again since that time; return whether it was deleted."""

    def list(self) -> Iterator[Blob]:
        """Return all blobs, in any order."""


class FileBlobs:
    """Keeps blobs as files in a folder, which may be a network file system that all workers mount.

    A blob is written to a temporary file, synced and renamed, so a crash never leaves a part of it under its name.

    - `folder`: the path of the folder, which is created with the first blob.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def put(self, name: str, data: bytes) -> None:
        """Store bytes durably; an existing file is replaced, so that it counts as new."""
        path = self._path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        _sync(path.parent)
        _sync(self._folder)

    def get(self, name: str) -> bytes | None:
        """Return the bytes, or None if there is no such blob."""
        path = self._path(name)
        for each in (path, _aside(path), path):  # `delete` may move it away for a moment
            try:
                return each.read_bytes()
            except FileNotFoundError:
                continue
        return None

    def delete(self, name: str, stored_before: datetime) -> bool:
        """Delete a blob unless it was stored again since that time; return whether it was deleted.

        The file is moved away first: `put` then writes a new one, and cannot lose it to this call.
        """
        path = self._path(name)
        aside = _aside(path)
        try:
            os.replace(path, aside)
        except FileNotFoundError:
            return False
        if _stored_at(aside) >= stored_before:
            os.replace(aside, path)
            return False
        aside.unlink()
        return True

    def list(self) -> Iterator[Blob]:
        """Return all blobs, in any order."""
        for path in self._folder.glob("??/*"):
            if _NAME.match(path.name):
                try:
                    yield Blob(path.name, _stored_at(path))
                except FileNotFoundError:  # deleted meanwhile
                    continue

    def _path(self, name: str) -> Path:
        if not _NAME.match(name):
            raise CodecError(f"{name!r} is not the name of a blob, which has 64 hexadecimal digits")
        return self._folder / name[:2] / name

    def __repr__(self) -> str:
        return f"FileBlobs({str(self._folder)!r})"


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.deleted")


def _stored_at(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
