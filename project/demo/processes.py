"""A server as a child process: started, waited for, stopped in order, and never left behind."""

import atexit
import os
import pwd
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from leaseq.errors import LeaseqBug, Misconfigured, Unavailable
from project.demo.folders import HeldFolder

LOCALHOST = "127.0.0.1"
LAUNCHER = Path(__file__).with_name("launch.py")
READY_TICK_S = 0.02
KILLED_WITHIN_S = 10.0
DEPARTED_WITHIN_S = 20.0
LOG_TAIL_LINES = 15
PORT_TRIES = 5


def free_port() -> int:
    """Name a port of this machine that nobody listens on; somebody else may still take it."""
    with socket.socket() as probe:
        probe.bind((LOCALHOST, 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_free(port: int) -> bool:
    """Say whether a server could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
    return True


@dataclass(frozen=True)
class Identity:
    """The user that a child runs as, when it is not ours."""

    uid: int
    gid: int


def unprivileged_identity() -> Identity | None:
    """Name the user a server that refuses root runs as; None when this process is not root.

    Raises Misconfigured where root has no `nobody` to become.
    """
    if os.geteuid() != 0:
        return None
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise Misconfigured(
            "PostgreSQL refuses to run as root and this machine has no user 'nobody': "
            "run the command as an ordinary user"
        ) from None
    return Identity(uid=nobody.pw_uid, gid=nobody.pw_gid)


def launch_command(
    command: Sequence[str | Path],
    *,
    death_signal: signal.Signals,
    identity: Identity | None,
) -> list[str]:
    """Wrap a command so that it ends when the thread that runs it ends (Linux)."""
    user = identity or Identity(uid=-1, gid=-1)
    own = [
        sys.executable,
        "-I",
        "-S",
        str(LAUNCHER),
        str(os.getpid()),
        str(int(death_signal)),
    ]
    return [*own, str(user.uid), str(user.gid), *(str(word) for word in command)]


def await_departure(pid_file: Path, *, directory: Path, service: str) -> None:
    """Return when the server that last worked in this directory is gone (Linux).

    A killed owner's server gets its death signal and needs a moment to go. A pid file whose
    number now belongs to another program is removed: after a reboot pids repeat. Raises
    Misconfigured when that server stays: then somebody started it by hand.
    """
    try:
        pid = int(pid_file.read_text().split()[0])
        works_in = Path(f"/proc/{pid}/cwd").readlink()
        handle = os.pidfd_open(pid) if sys.platform == "linux" else None
    except (OSError, ValueError, IndexError):
        return  # no pid file, no such process, or not ours to look at: the server itself decides
    if handle is None:
        return
    try:
        if works_in != directory.resolve():
            pid_file.unlink(missing_ok=True)
        elif not select.select([handle], [], [], DEPARTED_WITHIN_S)[0]:
            raise Misconfigured(
                f"a {service} server, process {pid}, already works in {directory}: "
                f"end it by `kill -INT {pid}`, or give another folder"
            )
    finally:
        os.close(handle)


def has_ended(child_pid: int) -> bool:
    """Say whether a child of ours has ended, without reaping it; always False outside Linux."""
    if sys.platform != "linux":
        return False
    try:
        told = os.waitid(os.P_PID, child_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return told is not None


class ChildProcess:
    """One server process in its own process group, with its output in a log file.

    It is started and reaped by a thread that lives exactly as long as it does: the kernel ties
    the death signal to the starting *thread*, so a service may be started from any thread, and
    a crashed server never stays a zombie that looks alive.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log_path: Path,
        directory: Path,
        stop_signal: signal.Signals = signal.SIGTERM,
        stop_within_s: float = 10.0,
        identity: Identity | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self._command = launch_command(command, death_signal=stop_signal, identity=identity)
        self._directory = directory
        self._stop_signal = stop_signal
        self._stop_within_s = stop_within_s
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: OSError | None = None
        self._ended = threading.Event()

    @property
    def pid(self) -> int:
        """The process id of the server itself."""
        if self._process is None:
            raise LeaseqBug(f"{self.name} has not been started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        if self._process is None or self._ended.is_set():
            return False
        # The reaper may not have come to it yet, so the kernel is asked as well.
        return not has_ended(self._process.pid)

    def start(self) -> None:
        """Start the process; raises Unavailable when the system refuses it."""
        begun = threading.Event()
        threading.Thread(
            target=self._live, args=(begun,), name=f"owner of {self.name}", daemon=True
        ).start()
        begun.wait()
        if self._failure is not None:
            raise Unavailable(f"{self.name} cannot be started: {self._failure}")

    def wait_until_ready(self, answers: Callable[[], bool], *, within_s: float) -> None:
        """Return when the server answers; raises Unavailable, with the log's end, otherwise."""
        deadline = time.monotonic() + within_s
        while self.is_running:
            if answers():
                return
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{self.name} did not answer within {within_s:g} s; the end of "
                    f"{self.log_path}:\n{self.log_tail()}"
                )
            self._ended.wait(READY_TICK_S)
        self._ended.wait(KILLED_WITHIN_S)
        raise Unavailable(
            f"{self.name} ended with status {self.exit_status} before it answered; the end of "
            f"{self.log_path}:\n{self.log_tail()}"
        )

    @property
    def exit_status(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.returncode

    def stop(self) -> None:
        """End the process in order, or by force after its bound, and reap it."""
        if self._process is None or not self.is_running:
            return
        self._process.send_signal(self._stop_signal)
        if not self._ended.wait(self._stop_within_s):
            self.kill()

    def kill(self) -> None:
        """End the process and its group by SIGKILL and reap it."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if not self._ended.wait(KILLED_WITHIN_S):
            raise Unavailable(f"{self.name} does not end, not even by SIGKILL", pid=self.pid)

    def log_tail(self) -> str:
        """Give the last lines of the log file."""
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def _live(self, begun: threading.Event) -> None:
        try:
            with self.log_path.open("wb") as log:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._directory,
                    env=self._environment,
                    process_group=0,
                )
        except OSError as error:
            self._failure = error
            return
        finally:
            begun.set()
        self._process.wait()
        self._ended.set()


class EmbeddedService(ABC):
    """A server of our own on a free port of 127.0.0.1, in a folder that only we hold.

    Start and stop may be called again; a start after a crash keeps the data. A process that was
    forked from the owner cannot stop the owner's server.
    """

    name: ClassVar[str]

    def __init__(self, folder: Path | None, *, port: int | None, other_user: bool = False) -> None:
        self._folder = HeldFolder(folder, name=self.name, other_user=other_user)
        self._asked_port = port
        self._port: int | None = None
        self._child: ChildProcess | None = None
        self._owner_pid = os.getpid()

    @property
    def port(self) -> int:
        """The port it listens on."""
        if self._port is None:
            raise LeaseqBug(f"{self.name} has not been started")
        return self._port

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._running_child().pid

    @property
    def log_path(self) -> Path:
        """The file with everything the server printed since its last start."""
        return self._folder.path / f"{self.name}.log"

    @property
    def is_running(self) -> bool:
        """Whether the server was started and has neither ended nor crashed."""
        return self._child is not None and self._child.is_running

    def start(self) -> Self:
        """Start the server and return when it answers; one that runs is left alone.

        Raises Misconfigured when this machine cannot run it, or its port or folder is taken, and
        Unavailable when it did not come up.
        """
        if self.is_running:
            return self
        self._owner_pid = os.getpid()
        with ExitStack() as undo:
            undo.callback(self.stop)
            self._folder.hold()
            atexit.register(self.stop)
            self._start_on_some_port()
            undo.pop_all()
        return self

    def stop(self) -> None:
        """Stop the server, reap it, and remove its folder if that was temporary."""
        if self._owner_pid != os.getpid():
            return
        atexit.unregister(self.stop)
        child, self._child, self._port = self._child, None, None
        with ExitStack() as release:
            release.callback(self._folder.release)
            if child is not None:
                child.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def _launch(self, port: int) -> None:
        """Run the server on this port through `_run`; raises Unavailable if it does not come up."""

    def _run(self, child: ChildProcess, answers: Callable[[], bool], *, within_s: float) -> None:
        # Kept before it is started, so that a failure or an interrupt on the way still stops it.
        self._child = child
        child.start()
        child.wait_until_ready(answers, within_s=within_s)

    def _running_child(self) -> ChildProcess:
        if self._child is None:
            raise LeaseqBug(f"{self.name} has not been started")
        return self._child

    def _start_on_some_port(self) -> None:
        if self._asked_port is not None and not port_is_free(self._asked_port):
            raise Misconfigured(
                f"{self.name} was asked to listen on port {self._asked_port}, which is taken: "
                "stop what listens there, or ask for no port and take any that is free"
            )
        for tries_left in reversed(range(PORT_TRIES)):
            self._port = self._asked_port or free_port()
            try:
                self._launch(self._port)
            except Unavailable:
                child = self._running_child()
                # Somebody took the port between our look and the server's.
                if child.is_running or port_is_free(self._port) or not tries_left:
                    raise
            else:
                return
