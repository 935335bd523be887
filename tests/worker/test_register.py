"""One record in shared memory, whole or not believed (SPEC C4a)."""

import struct

import pytest

from leaseq.errors import LeaseqBug
from leaseq.worker.register import Register

LAYOUT = struct.Struct("=q")


@pytest.fixture
def memory() -> memoryview:
    return memoryview(bytearray(Register.size(LAYOUT)))


def test_a_register_is_empty_until_it_is_written(memory: memoryview) -> None:
    register = Register(memory, 0, LAYOUT)
    assert register.read() is None
    register.write(1)
    register.write(2)
    assert register.read() == (2,)
    assert register.number == 2


@pytest.mark.parametrize("written", range(1, 24))
def test_a_writer_killed_half_way_leaves_the_last_record(memory: memoryview, written: int) -> None:
    register = Register(memory, 0, LAYOUT)
    register.write(1)
    before = bytes(memory)
    register.write(2)
    after = bytes(memory)
    # As it was when the writer had made the word odd and copied some bytes of the new record.
    memory[:] = before
    memory[0:8] = struct.pack("=Q", 3)
    memory[8 : 8 + written] = after[8 : 8 + written]
    assert register.read() == (1,)
    register.write(3)
    assert register.read() == (3,)


def test_bytes_that_are_not_the_writers_are_never_believed(memory: memoryview) -> None:
    register = Register(memory, 0, LAYOUT)
    register.write(1)
    register.write(2)
    sound = bytes(memory)
    # The copy in use is the first; its number, field and checksum are 24 bytes from the 8th.
    for at in range(8, 32):
        memory[:] = sound
        memory[at] ^= 0x10
        with pytest.raises(LeaseqBug, match="damaged"):
            register.read()
