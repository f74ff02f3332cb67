"""A long answer beside its connection: it lies in memory that the replica and its caller share.

Over a socket each byte is copied into the kernel and out of it once more than from a server that its client reaches
itself. Here the replica writes it onto a sheet, says on the connection how far it has come, and the caller sends it on
from where it lies.

* A sheet belongs to one connection, and dies with it. The next answer on that connection is written over the last one,
  so the caller begins no other exchange before everything it read is with its client.
* A caller says in a request that it reads sheets, and by which sign it knows those (`hop.SHEET`): an app that answers
  with a field of that name does not know the sign. The head of an answer that comes on a sheet is that of any other and
  has sign and sheet in a field of the same name; instead of the body come words of four bytes, each of which says how
  many bytes more lie on the sheet.
* The memory has no file: nothing is left of it when both processes have ended, however they do.
"""

import fcntl
import mmap
import os
import secrets
from typing import ClassVar
from weakref import WeakSet, finalize

from app_toolkit.transport.sockets import close_in_children
from app_toolkit.types import Address

LEAST = 1024 * 1024
"""Bytes from which on an answer is worth a sheet."""

MOST = 16 * 1024 * 1024
"""Bytes of the largest one; what is longer goes over the connection."""

STEP = 1024 * 1024
"""Bytes that are written before the caller is told, so that both ends work at once."""

LIVE = 8
"""Sheets that a process has at the same time; for more answers than these, connections do."""

WORD = 4


class Sheet:
    """What a replica writes on."""

    live: ClassVar["WeakSet[Sheet]"] = WeakSet()

    def __init__(self, size: int) -> None:
        """Room for so many bytes. Raises `OSError` where the system has none, or no memory that can be shared so."""
        if len(self.live) >= LIVE:
            raise OSError(f"{LIVE} sheets are in use")
        if not hasattr(os, "memfd_create"):
            raise OSError("memory can be shared by its file on Linux alone")
        self.size = size
        token = secrets.token_hex(8)
        self._file = os.memfd_create(token, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._end = finalize(self, os.close, self._file)
        try:
            # Now, because later nobody could be told that there is no memory.
            os.posix_fallocate(self._file, 0, size)
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        except OSError:
            self._end()
            raise
        self.name = b"%d/%d/%b/%d" % (os.getpid(), self._file, token.encode(), size)
        self.live.add(self)
        close_in_children(self)

    def fileno(self) -> int:
        return self._file if self._end.alive else -1

    def write(self, data: memoryview, at: int) -> bytes:
        """Put it there; gives the word for whoever reads."""
        word = len(data).to_bytes(WORD, "big")
        while data:
            written = os.pwrite(self._file, data, at)
            at, data = at + written, data[written:]
        return word

    def close(self) -> None:
        """Whoever reads keeps what there is."""
        self.live.discard(self)
        self._end()


class Sheets:
    """How a caller finds the sheets of replicas on its machine."""

    def __init__(self) -> None:
        #: By which those are known that this caller asked for.
        self.sign = secrets.token_hex(8).encode()
        #: Replicas, by whether their sheets can be read. One that the system keeps from us it does for ever.
        self._readable: dict[Address, bool] = {}

    def asks(self, address: Address, *, again: bool) -> bool:
        """Whether to ask this replica for them; `again`: the request may be run twice, should that fail."""
        return self._readable.get(address, again and hasattr(os, "memfd_create"))

    def forget(self, address: Address) -> None:
        self._readable.pop(address, None)

    def open(self, address: Address, name: bytes) -> memoryview:
        """A replica's sheet of this name, to be read. Raises `OSError` where it is not to be had, or is another one."""
        self._readable[address] = False
        try:
            process, number, token, size = name.decode("ascii").split("/")
            path = f"/proc/{int(process)}/fd/{int(number)}"
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                if os.readlink(f"/proc/self/fd/{file}") != f"/memfd:{token} (deleted)":
                    raise OSError("it is another file")
                view = memoryview(mmap.mmap(file, int(size), prot=mmap.PROT_READ))
            finally:
                os.close(file)
        except (ValueError, OverflowError) as error:
            raise OSError(str(error)) from None
        self._readable[address] = True
        return view


class Following:
    """One answer on a sheet, as its words come."""

    def __init__(self, sheet: memoryview, size: int) -> None:
        """`size`: bytes of the answer. Raises `ValueError` where the sheet has fewer."""
        if size > len(sheet):
            raise ValueError(f"an answer of {size} bytes does not lie on a sheet of {len(sheet)}")
        self._sheet = sheet
        self._size = size
        self._at = 0
        self._begun = b""

    def feed(self, data: bytes) -> memoryview:
        """What has come to lie on the sheet by these words. Raises `ValueError` where that is more than the answer."""
        words = self._begun + data
        start = self._at
        while len(words) >= WORD and not self.complete:
            self._at += int.from_bytes(words[:WORD], "big")
            words = words[WORD:]
        self._begun = words
        if self._at > self._size or (words and self.complete):
            raise ValueError("more came than the answer")
        return self._sheet[start : self._at]

    @property
    def complete(self) -> bool:
        return self._at == self._size
