"""Hands payload to a PostgreSQL on this machine: a file in memory that it copies into a segment.

Knows COPY's binary format and files; no connection, and only the one statement. Used with the
embedded server: its superuser may read files (docs/decisions/0007).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from core.types import Payload

MEMORY = Path("/dev/shm")
_PREFIX = "penstock-handover-"
_IOV_MAX = 1024  # pieces a `pwritev` takes
# https://www.postgresql.org/docs/18/sql-copy.html, "Binary Format". No trailer: the end of the file
# is enough.
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_ROW = struct.Struct(">hiqiii")  # 3 fields; 8 bytes, payload_id; 4 bytes, seq; bytes of data
_FIELDS = 3


class Handover:
    """The directory in which one gateway leaves files for a server; only the two may look inside.

    It is used only through its open descriptor. If it is removed, anybody may make a directory of
    the same name in /dev/shm, but none of our files will be in that one.
    """

    def __init__(self, owner: tuple[int, int]) -> None:
        """Makes it. owner: the server's uid and gid. Raises OSError."""
        self._owner = owner
        self.directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=MEMORY))  # mode 0700
        self._fd = os.open(self.directory, os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # shows that its gateway lives
            if self.directory.stat().st_ino != os.fstat(self._fd).st_ino:
                raise FileNotFoundError(f"{self.directory} was taken for a dead gateway's")
            os.chown(self._fd, *owner)
        except OSError:
            self.remove()
            raise

    @classmethod
    def make(cls, owner: tuple[int, int]) -> Self | None:
        """Makes a directory, and removes those of killed gateways. None if the machine has no
        memory for it."""
        if not MEMORY.is_mount():  # missing, or a directory on a disk
            return None
        remove_abandoned()
        for _ in range(3):  # before it is locked, another start may remove it as abandoned
            with contextlib.suppress(OSError):
                return cls(owner)
        return None

    def open(self) -> HandoverFile:
        """A file for one session. Raises OSError."""
        name = secrets.token_hex(8)
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._fd)
        file = HandoverFile(self.directory / name, fd)
        try:
            os.fchown(fd, *self._owner)
        except OSError:
            file.close()
            raise
        return file

    def remove(self) -> None:
        """Removes the directory and all that is in it."""
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._fd)


def remove_abandoned() -> None:
    """Removes the directories of killed gateways, as far as this process may."""
    for earlier in MEMORY.glob(f"{_PREFIX}*"):
        _remove_if_dead(earlier)


def _remove_if_dead(directory: Path) -> None:
    with contextlib.suppress(OSError):  # another user's, or in use
        fd = os.open(directory, os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(fd)


class HandoverFile:
    """Holds the payload of one statement at a time.

    The caller writes only after the server has answered the last statement: until then it may not
    have read the file. If the session is lost, the file is closed and never written again.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd

    def statement(self, table: str) -> str:
        """Copies it into a table of chunks; prepared once, run for each payload."""
        return f"COPY {table} (payload_id, seq, data) FROM '{self._path}' (FORMAT binary)"

    def write(self, payload_id: int, parts: Sequence[Payload], chunk_bytes: int) -> None:
        """Replaces the contents by rows (payload_id, seq, data). Raises OSError."""
        pieces = list(_rows(payload_id, parts, chunk_bytes))
        end = 0
        for first in range(0, len(pieces), _IOV_MAX):
            some = pieces[first : first + _IOV_MAX]
            written = os.pwritev(self._fd, some, end)
            if written != sum(map(len, some)):
                raise OSError(f"{self._path} takes no more")
            end += written
        os.ftruncate(self._fd, end)

    def is_named_in(self, message: str) -> bool:
        """Whether the server's error is about this file, or its contents."""
        return str(self._path) in message or "COPY record_chunk_" in message

    def close(self) -> None:
        """Closes it; a server that has it open may still read it."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._fd)


def _rows(payload_id: int, parts: Sequence[Payload], chunk_bytes: int) -> Iterator[Payload]:
    """The parts, concatenated and cut into rows."""
    yield _HEADER
    left = sum(map(len, parts))
    seq = room = 0
    for part in parts:
        view = memoryview(part)
        position = 0
        while position < len(view):
            if room == 0:
                room = min(chunk_bytes, left)
                yield _ROW.pack(_FIELDS, 8, payload_id, 4, seq, room)
                seq += 1
            piece = view[position : position + room]
            yield piece
            position += len(piece)
            room -= len(piece)
            left -= len(piece)
