"""Folders for embedded services."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def folder() -> Iterator[Path]:
    """A data folder that any user may enter; as in a checkout that is not in root's home."""
    top = Path(tempfile.mkdtemp(prefix="leaseq-test-"))
    top.chmod(0o755)
    yield top / "data"
    shutil.rmtree(top)
