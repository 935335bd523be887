"""The contracts of pyproject.toml hold, and each of them can be broken.

The second half runs the same contracts over an empty skeleton of the rooms, in which one sin at a
time is planted; so it says nothing about the code and everything about the contracts.
"""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.sources import ROOT

LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"
WITHIN_S = 120

POINT_ONE_WAY = "Packages point one way: project -> leaseq_admin -> leaseq"
ROOMS = "Rooms of leaseq point downwards"
PURE = "Pure rooms know no framework"
ADAPTERS = "Adapters know no database"
EDGE = "Celery only at the edge"
CYCLES = "No cycles between siblings, at any depth"
CONTRACTS = (POINT_ONE_WAY, ROOMS, PURE, ADAPTERS, EDGE, CYCLES)


def lint(folder: Path) -> tuple[int, str]:
    """Run import-linter over the packages in a folder, and nothing else."""
    done = subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    return done.returncode, done.stdout


def contracts() -> list[dict[str, Any]]:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed: list[dict[str, Any]] = configuration["tool"]["importlinter"]["contracts"]
    return listed


def rooms() -> list[str]:
    """Name the rooms of leaseq, from the top down."""
    layers = next(one["layers"] for one in contracts() if one["name"] == ROOMS)
    return [room.strip(" ()") for layer in layers for room in layer.split("|")]


@pytest.fixture
def skeleton(tmp_path: Path) -> Path:
    """The packages with nothing in them, under the contracts of this project."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    packages = ["leaseq", "leaseq_admin", "project", *(f"leaseq/{room}" for room in rooms())]
    for package in packages:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    return tmp_path


def plant(folder: Path, path: str, text: str) -> None:
    """Add a file, with the packages that lead to it."""
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def test_the_contracts_hold() -> None:
    status, told = lint(ROOT)
    if status != 0:
        pytest.fail(told, pytrace=False)
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in told


def test_no_contract_has_an_exception() -> None:
    assert [one["name"] for one in contracts()] == list(CONTRACTS)
    for contract in contracts():
        assert not any(key.startswith(("ignore", "allow", "unmatched")) for key in contract)


def test_the_contracts_hold_over_empty_rooms(skeleton: Path) -> None:
    status, told = lint(skeleton)
    assert status == 0, f"\n{told}"


@pytest.mark.parametrize(
    ("sins", "broken"),
    [
        ({"leaseq/conf/a.py": "import leaseq_admin\n"}, POINT_ONE_WAY),
        ({"leaseq_admin/a.py": "import project\n"}, POINT_ONE_WAY),
        ({"leaseq/rules/a.py": "import leaseq.models\n"}, ROOMS),
        ({"leaseq/services/a.py": "import leaseq.providers\n"}, ROOMS),
        ({"leaseq/services/a.py": "def f():\n    import leaseq.controllers\n"}, ROOMS),
        ({"leaseq/models/a.py": "if TYPE_CHECKING:\n    import leaseq.queries\n"}, ROOMS),
        ({"leaseq/utils.py": ""}, "utils"),
        ({"leaseq/rules/a.py": "from django.db import models\n"}, PURE),
        ({"leaseq/owner/a.py": "def f():\n    import psycopg\n"}, PURE),
        ({"leaseq/providers/a.py": "import leaseq.models\n"}, ADAPTERS),
        ({"leaseq/providers/a.py": "import celery\n"}, ADAPTERS),
        ({"leaseq/services/a.py": "def f():\n    from celery import shared_task\n"}, EDGE),
        ({"leaseq_admin/a.py": "import kombu\n"}, EDGE),
        (
            {
                "leaseq_admin/a.py": "import leaseq.worker.b\n",
                "leaseq/worker/b.py": "import celery\n",
            },
            EDGE,
        ),
        (
            {
                "leaseq/services/a.py": "import leaseq.services.b\n",
                "leaseq/services/b.py": "def f():\n    import leaseq.services.a\n",
            },
            CYCLES,
        ),
    ],
    ids=[
        "leaseq-imports-its-admin",
        "admin-imports-project",
        "rule-imports-a-model",
        "service-imports-an-adapter",
        "service-imports-a-controller-inside",
        "model-imports-a-query-for-types",
        "new-room-utils",
        "rule-imports-django",
        "owner-imports-psycopg-inside",
        "adapter-imports-a-model",
        "adapter-imports-celery",
        "service-imports-celery-inside",
        "admin-imports-kombu",
        "admin-reaches-celery-indirectly",
        "two-services-import-each-other",
    ],
)
def test_a_planted_sin_breaks_its_contract(
    skeleton: Path, sins: dict[str, str], broken: str
) -> None:
    for path, text in sins.items():
        plant(skeleton, path, text)
    status, told = lint(skeleton)
    assert status != 0
    if broken in CONTRACTS:
        assert f"{broken} BROKEN" in told, f"\n{told}"
    else:
        assert broken in told, f"\n{told}"
