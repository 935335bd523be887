"""The processes of the demo: pinned workers, a control worker with beat, the web server."""

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

from leaseq.conf import settings
from leaseq.models import WorkerNode
from leaseq.vocabulary import WorkerState
from project.demo.processes import ChildProcess, free_port

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_S = 60.0
ANSWER_WITHIN_S = 2.0


class Stage:
    """Starts what the demo needs and stops all of it, in order."""

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._running: list[ChildProcess] = []
        self._gpu_workers = 0
        self.address = ""

    def start_control_worker(self) -> None:
        """Start one worker on the control queue alone, with beat in it."""
        queue = settings().control_queue
        self._start("control", *_worker("control", queue, 1), "--beat")

    def start_gpu_worker(self, name: str, *, slots: int) -> ChildProcess:
        """Start a worker with so many slots and return it once it is registered."""
        self._gpu_workers += 1
        child = self._start(f"{name}-{self._gpu_workers}", *_worker(name, "gpu", slots))
        registered = WorkerNode.objects.filter(pid=child.pid, state=WorkerState.LIVE)
        child.wait_until_ready(registered.exists, within_s=READY_WITHIN_S)
        return child

    def start_web_server(self) -> None:
        """Start the admin on a free port."""
        port = free_port()
        self.address = f"http://127.0.0.1:{port}/admin/"
        child = self._start(
            "web", str(ROOT / "manage.py"), "runserver", "--noreload", f"127.0.0.1:{port}"
        )
        child.wait_until_ready(self._answers, within_s=READY_WITHIN_S)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.address, timeout=ANSWER_WITHIN_S):  # noqa: S310
                return True
        except (urllib.error.URLError, OSError):
            return False

    def close(self) -> None:
        """Stop every process, the latest first."""
        while self._running:
            self._running.pop().stop()

    def _start(self, name: str, *command: str) -> ChildProcess:
        child = ChildProcess(
            name,
            [sys.executable, *command],
            log_path=self.logs / f"{name}.log",
            directory=ROOT,
            stop_within_s=30.0,
            environment=dict(os.environ),
        )
        self._running.append(child)
        child.start()
        return child


def _worker(name: str, queue: str, concurrency: int) -> list[str]:
    return [
        "-m", "celery", "-A", "project", "worker",
        "--queues", queue,
        "--concurrency", str(concurrency),
        "--hostname", f"{name}@%h",
        "--loglevel", "info",
        "--without-mingle", "--without-gossip",
    ]  # fmt: skip
