"""What a node offers: its GPUs, or what is declared; one device a process (SPEC D2)."""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from leaseq.errors import Misconfigured
from leaseq.worker import slots
from leaseq.worker.slots import DEVICES_VARIABLE, VISIBLE_VARIABLE, find_devices, pin, share_out

GPUS = ["GPU-1111-a", "GPU-2222-b", "GPU-3333-c"]


class NvmlError(Exception):
    """What pynvml calls NVMLError."""


class Nvml:
    """A stand-in with the names of pynvml that are used, on a node with these GPUs."""

    NVMLError = NvmlError

    def __init__(self, *devices: str, has_driver: bool = True) -> None:
        self.devices = devices
        self.has_driver = has_driver
        self.is_open = False
        self.nvmlInit = self.open
        self.nvmlShutdown = self.close
        self.nvmlDeviceGetCount = self.count
        self.nvmlDeviceGetHandleByIndex = self.handle
        self.nvmlDeviceGetUUID = self.uuid

    def open(self) -> None:
        if not self.has_driver:
            raise NvmlError("Driver Not Loaded")
        self.is_open = True

    def close(self) -> None:
        self.is_open = False

    def count(self) -> int:
        assert self.is_open
        return len(self.devices)

    def handle(self, index: int) -> int:
        assert self.is_open
        return index

    def uuid(self, handle: int) -> str:
        assert self.is_open
        return self.devices[handle]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process to which no device was named yet; what it is told is taken back."""
    for variable in (DEVICES_VARIABLE, VISIBLE_VARIABLE):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)


def use(monkeypatch: pytest.MonkeyPatch, nvml: Nvml | None) -> None:
    monkeypatch.setattr(slots, "pynvml", nvml)


# -- found -------------------------------------------------------------------------------------


def test_devices_are_named_by_their_uuid_in_the_drivers_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = Nvml(*GPUS)
    use(monkeypatch, nvml)
    assert find_devices() == GPUS
    assert not nvml.is_open


@pytest.mark.parametrize(
    "nvml", [None, Nvml(*GPUS, has_driver=False), Nvml()], ids=["no NVML", "no driver", "no GPU"]
)
def test_a_node_without_gpus_has_none(monkeypatch: pytest.MonkeyPatch, nvml: Nvml | None) -> None:
    use(monkeypatch, nvml)
    assert find_devices() == []


def test_a_driver_that_fails_half_way_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml(*GPUS)
    use(monkeypatch, nvml)

    def fail(_handle: int) -> str:
        raise NvmlError("GPU is lost")

    monkeypatch.setattr(nvml, "nvmlDeviceGetUUID", fail)
    with pytest.raises(NvmlError):
        find_devices()
    assert not nvml.is_open


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("1", GPUS[1:2]),
        ("2,0", [GPUS[2], GPUS[0]]),
        ("GPU-2222", GPUS[1:2]),
        (" GPU-3333-c , 0 ", [GPUS[2], GPUS[0]]),
        ("", []),
        ("-1", []),
        ("0,-1,1", GPUS[:1]),
        ("9", []),
        ("GPU-", []),
        ("MIG-1111-a", []),
    ],
)
def test_what_the_operator_did_not_leave_to_this_worker_is_not_offered(
    monkeypatch: pytest.MonkeyPatch, named: str, found: list[str]
) -> None:
    use(monkeypatch, Nvml(*GPUS))
    monkeypatch.setenv(VISIBLE_VARIABLE, named)
    assert find_devices() == found


# -- shared out --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("concurrency", "declared", "devices", "units"),
    [
        pytest.param(2, None, GPUS, GPUS[:2], id="a GPU each"),
        pytest.param(3, None, GPUS, GPUS, id="all GPUs"),
        pytest.param(2, None, [], ["gpu@here:0", "gpu@here:1"], id="without GPUs one a process"),
        pytest.param(1, 4, [], ["gpu@here:0"], id="no more than there are processes"),
        pytest.param(2, 2, GPUS[:1], ["gpu@here:0", "gpu@here:1"], id="shares of one GPU"),
    ],
)
def test_each_pool_process_has_one_unit(
    concurrency: int, declared: int | None, devices: list[str], units: list[str]
) -> None:
    found = share_out(
        worker_name="gpu@here", concurrency=concurrency, declared=declared, devices=devices
    )
    assert found == units


@pytest.mark.parametrize(
    ("concurrency", "declared", "devices", "says"),
    [
        (4, None, GPUS, "has 4 processes and 3 GPUs were found.*--concurrency=3"),
        (3, 2, [], "has 3 processes and 2 slots are declared.*--concurrency=2"),
        (3, 2, GPUS, "2 slots are declared"),
    ],
    ids=["more than GPUs", "more than declared", "what is declared counts"],
)
def test_a_pool_larger_than_its_capacity_is_refused_with_the_mend(
    concurrency: int, declared: int | None, devices: list[str], says: str
) -> None:
    with pytest.raises(Misconfigured, match=says):
        share_out(
            worker_name="gpu@here", concurrency=concurrency, declared=declared, devices=devices
        )


# -- pinned ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("index", "device"), [(0, GPUS[0]), (2, GPUS[2]), (3, GPUS[0])])
def test_one_device_is_visible_to_each_process(
    monkeypatch: pytest.MonkeyPatch, index: int, device: str
) -> None:
    monkeypatch.setenv(DEVICES_VARIABLE, ",".join(GPUS))
    assert pin(index) == device
    assert os.environ[VISIBLE_VARIABLE] == device


def test_without_gpus_nothing_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICES_VARIABLE, "")
    assert pin(0) is None
    assert VISIBLE_VARIABLE not in os.environ


# -- a real one --------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(
    not importlib.util.find_spec("pynvml") or not Path("/dev/nvidiactl").exists(),
    reason="needs an NVIDIA GPU and the extra leaseq[gpu]",
)
def test_the_gpus_of_this_machine_are_found_as_its_driver_lists_them() -> None:
    assert shutil.which("nvidia-smi")
    found = find_devices()
    assert found
    assert all(one.startswith("GPU-") for one in found)
    assert len(set(found)) == len(found)
