"""Which process is this, and is another one provably gone (SPEC D7, L5a, M8)."""

import ctypes
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

NODE_VARIABLE = "LEASEQ_NODE"
PROC = Path("/proc")
PR_SET_PDEATHSIG = 1
GONE_STATES = frozenset("ZXx")
PF_EXITING = 0x4
NOT_KNOWN = ""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One incarnation of a process; its pid alone is never an identity (SPEC M8).

    `boot_id` is "boot id/pid namespace/time namespace", at most 64 characters: pid and start
    ticks mean something only inside these. It is empty where the platform cannot say. `node` must
    name one machine: two machines under one name would be taken for one that was restarted.
    """

    node: str
    boot_id: str
    pid: int
    start_ticks: int


class ProcessStat(NamedTuple):
    """What /proc says of one process."""

    state: str
    exiting: bool
    threads: int
    start_ticks: int


def node_name() -> str:
    """Name this machine: LEASEQ_NODE where it is set, else the host name."""
    return os.environ.get(NODE_VARIABLE) or socket.gethostname()


def boot_id() -> str:
    """Name this boot of the kernel and the namespaces in which pids and ticks are counted."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        pids = _namespace("pid")
    except OSError:
        return NOT_KNOWN
    try:
        clock = _namespace("time")
    except OSError:
        # Kernels before 5.6 have no time namespaces, so there is nothing to tell apart.
        clock = "0"
    return f"{boot}/{pids}/{clock}"


def own_identity() -> ProcessIdentity:
    """Return the identity of the calling process; to be read anew after a fork."""
    pid = os.getpid()
    return ProcessIdentity(node_name(), boot_id(), pid, start_ticks_of(pid) or 0)


def start_ticks_of(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None where it cannot be read."""
    stat = _stat(pid)
    return stat.start_ticks if stat else None


def is_dead(identity: ProcessIdentity) -> bool | None:
    """Say whether that incarnation is provably gone: True, False, or None for "cannot know".

    True when its machine was booted again since, or its pid is free, belongs to a later process
    or is a zombie. None for another node, another pid or time namespace, another platform, or
    where the process is hidden from this user. Never a guess: True is evidence (SPEC L5a).
    """
    here = boot_id()
    if identity.node != node_name() or not here or not identity.boot_id:
        return None
    if identity.boot_id != here:
        rebooted = identity.boot_id.split("/")[0] != here.split("/")[0]
        return True if rebooted else None
    if identity.pid <= 0 or identity.start_ticks <= 0:
        return None
    stat = _stat(identity.pid)
    if stat is None:
        return True if _pid_is_free(identity.pid) else None
    if stat.start_ticks != identity.start_ticks:
        return True
    # A main thread that ended shows as a zombie while other threads of the process still run.
    return stat.state in GONE_STATES and stat.threads <= 1


def die_with_parent(*, parent_pid: int) -> bool:
    """Ask the kernel to SIGKILL this process when its parent dies (SPEC D7).

    `parent_pid` is the parent's pid, read by the parent before the fork. If the parent is gone by
    now, this process kills itself at once, so there is no moment in which it could be orphaned.
    Returns False, with nothing changed, where the platform has no such signal or `parent_pid`
    lives and is not the parent. The kernel watches the THREAD that forked, so children must be
    started from a thread that lives as long as the parent.
    """
    if not sys.platform.startswith("linux"):
        return False
    if os.getppid() != parent_pid:
        if _is_running(parent_pid):
            return False
        _die()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        return False
    if os.getppid() != parent_pid:
        _die()
    return True


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _namespace(kind: str) -> str:
    link = str((PROC / "self/ns" / kind).readlink())
    return link.partition("[")[2].rstrip("]")


def _stat(pid: int) -> ProcessStat | None:
    """Read /proc/PID/stat; the command in it may hold spaces and brackets, so cut after it."""
    try:
        text = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = text.rpartition(b")")[2].split()
    return ProcessStat(
        state=fields[0].decode(),
        exiting=bool(int(fields[6]) & PF_EXITING),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
    )


def _pid_is_free(pid: int) -> bool:
    """Ask the kernel itself: /proc may hide the processes of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _is_running(pid: int) -> bool:
    """Say whether a process still runs; one that gives its children away already does not.

    The kernel does that before it shows the process as a zombie.
    """
    stat = _stat(pid)
    return stat is not None and not stat.exiting and stat.state not in GONE_STATES
