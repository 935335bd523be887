"""The holder's clock (SPEC C1, PROMISES F34)."""

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from leaseq.owner.clock import best_clock, boot_seconds

READ_IT = "from leaseq.owner.clock import boot_seconds; print(boot_seconds())"


@pytest.mark.skipif(not Path("/proc/uptime").exists(), reason="needs Linux to compare with")
def test_it_counts_from_boot_as_the_kernel_does() -> None:
    before = boot_seconds()
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    # The kernel prints hundredths, rounded down.
    assert before - 0.02 <= uptime <= boot_seconds()


def test_another_process_reads_the_same_clock() -> None:
    before = boot_seconds()
    ran = subprocess.run([sys.executable, "-c", READ_IT], capture_output=True, check=True)
    assert before < float(ran.stdout) < boot_seconds()


@pytest.mark.parametrize("years", [-10, 10])
def test_a_stepped_wall_clock_changes_nothing(years: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before, wall = boot_seconds(), time.time()
    monkeypatch.setattr(time, "time", lambda: wall + years * 31_557_600)
    assert 0 <= boot_seconds() - before < 60


def test_without_a_boot_clock_it_takes_the_monotonic_one() -> None:
    other = SimpleNamespace(CLOCK_MONOTONIC=time.CLOCK_MONOTONIC)
    before = time.monotonic()
    assert before <= best_clock(other)() <= time.monotonic()


def test_without_clock_numbers_it_takes_the_monotonic_function() -> None:
    assert best_clock(SimpleNamespace()) is time.monotonic
