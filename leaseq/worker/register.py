"""One record in shared memory: one writer, any number of readers, and nobody ever waits."""

from struct import Struct
from typing import Any
from zlib import crc32

from leaseq.errors import LeaseqBug

WORD_BYTES = 8
CHECKSUM = Struct("=Q")
NUMBER = Struct("=Q")
# A read is repeated only when two whole writes passed through it, so a few dozen in a row mean
# that the memory is damaged.
READ_TRIES = 64


class Register:
    """A sequence lock over two copies that are written in turn (SPEC C4a).

    The sequence word is odd while a copy is being written; halved, it is the number of the last
    complete write, whose copy is not touched by the next one. So a writer that is killed or
    stopped half way leaves the last record readable, and its successor goes on from there. Each
    copy carries its number and a checksum of all of it: a reader that was overtaken, or that sees
    memory in another order than it was written, notices and reads again.
    """

    def __init__(self, memory: memoryview, offset: int, layout: Struct) -> None:
        self._layout = layout
        self._body_bytes = NUMBER.size + layout.size
        self._copy_bytes = self._body_bytes + CHECKSUM.size
        first = offset + WORD_BYTES
        second = first + self._copy_bytes
        # A cast to native words makes each access one load or store of eight bytes.
        self._word = memory[offset:first].cast("Q")
        self._copies = (
            memory[first:second],
            memory[second : second + self._copy_bytes],
        )

    @staticmethod
    def size(layout: Struct) -> int:
        """Say how many bytes a register of records of `layout` takes, in whole words."""
        copy = NUMBER.size + layout.size + CHECKSUM.size
        whole = WORD_BYTES + 2 * copy
        return -(-whole // WORD_BYTES) * WORD_BYTES

    @property
    def number(self) -> int:
        """The number of the last complete write; 0 before the first. Equal means unchanged."""
        return self._word[0] >> 1

    def write(self, *fields: Any) -> None:
        """Put a record in place of the last one. Only the register's one writer may call this.

        Raises struct.error, with nothing changed, for fields that do not fit.
        """
        number = self.number + 1
        body = NUMBER.pack(number) + self._layout.pack(*fields)
        self._word[0] = 2 * number - 1
        self._copies[number & 1][:] = body + CHECKSUM.pack(crc32(body))
        self._word[0] = 2 * number

    def read(self) -> tuple[Any, ...] | None:
        """Return the fields of the last complete record; None before the first.

        Raises LeaseqBug when no copy is whole: something that is not the writer wrote there.
        """
        for _ in range(READ_TRIES):
            number = self.number
            if not number:
                return None
            copy = bytes(self._copies[number & 1])
            body = copy[: self._body_bytes]
            whole = CHECKSUM.unpack_from(copy, self._body_bytes)[0] == crc32(body)
            if whole and NUMBER.unpack_from(body)[0] == number:
                return self._layout.unpack_from(body, NUMBER.size)
        raise LeaseqBug("a record in shared memory is damaged")

    def close(self) -> None:
        """Let go of the memory."""
        self._word.release()
        for copy in self._copies:
            copy.release()
