"""Valkey out of a wheel, as a child process."""

import signal
from pathlib import Path
from typing import ClassVar

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from project.demo.packages import broker_program
from project.demo.processes import (
    LOCALHOST,
    ChildProcess,
    EmbeddedService,
    await_departure,
)

READY_WITHIN_S = 30.0
ANSWER_WITHIN_S = 2.0


class EmbeddedBroker(EmbeddedService):
    """A Redis-like broker on 127.0.0.1 without a password, for tests and the demo only.

    Without a data folder everything is gone after `stop`. With one, and `append_only`, messages
    survive a restart and a crash. Memory is never freed by dropping messages (noeviction).
    """

    name: ClassVar[str] = "broker"

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        port: int | None = None,
        append_only: bool = False,
    ) -> None:
        super().__init__(data_dir, port=port)
        self._append_only = append_only

    @property
    def url(self) -> str:
        """The address for Celery: database 0."""
        return f"redis://{LOCALHOST}:{self.port}/0"

    def _launch(self, port: int) -> None:
        program, folder = broker_program(), self._folder.path
        pid_file = folder / "broker.pid"
        await_departure(pid_file, directory=folder, service=self.name)
        child = ChildProcess(
            self.name,
            [program, *self._options(port, pid_file=pid_file)],
            log_path=self.log_path,
            directory=folder,
            stop_signal=signal.SIGTERM,
        )
        self._run(child, self._answers, within_s=READY_WITHIN_S)

    def _options(self, port: int, *, pid_file: Path) -> list[str]:
        options = {
            "bind": LOCALHOST,
            "port": str(port),
            "dir": str(self._folder.path),
            "pidfile": str(pid_file),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes" if self._append_only else "no",
            "maxmemory-policy": "noeviction",
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]

    def _answers(self) -> bool:
        with Redis(
            host=LOCALHOST,
            port=self.port,
            socket_timeout=ANSWER_WITHIN_S,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            try:
                # It must be ours: another server could have taken the port meanwhile.
                return bool(client.ping()) and client.info("server")["process_id"] == self.pid
            except RedisError:
                return False
