"""Migrate an empty database of the PostgreSQL in LEASEQ_PG_BIN (or of the wheel), and look again.

Run by `.ci/run` once per major version:

    uv run python .ci/migrate_from_zero.py 16

Fails unless the server is of that major version, every migration applies, the models need no
migration that is not written, and the system checks pass.
"""

import os
import subprocess
import sys
from pathlib import Path

import psycopg

from project.demo.postgres import EmbeddedPostgres

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = (
    ["migrate", "--verbosity", "0"],
    ["makemigrations", "--check", "--dry-run"],
    ["check"],
)


def main(words: list[str]) -> None:
    """Start the server, run the commands against it, stop it."""
    wanted = int(words[0])
    with EmbeddedPostgres(fsync=False) as server:
        with psycopg.connect(server.url) as connection:
            major = connection.info.server_version // 10_000
        if major != wanted:
            sys.exit(f"this is PostgreSQL {major}, not {wanted}")
        environment = {**os.environ, "LEASEQ_DEBUG": "1", "LEASEQ_DATABASE_URL": server.url}
        for command in COMMANDS:
            print("manage.py", *command, flush=True)
            subprocess.run(
                [sys.executable, "manage.py", *command], cwd=ROOT, env=environment, check=True
            )
    print(f"PostgreSQL {major}: migrated from zero")


if __name__ == "__main__":
    main(sys.argv[1:])
