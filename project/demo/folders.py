"""The folder that a service holds while it runs."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from leaseq.errors import LeaseqBug, Misconfigured


def others_can_reach(path: Path) -> bool:
    """Say whether any user may enter every folder on the way to this path, and the path itself."""
    real = path.resolve()
    return all(step.stat().st_mode & 0o001 for step in (real, *real.parents))


def temporary_root(*, other_user: bool) -> Path:
    """Name the folder for temporary files; one that any user can reach, if another user needs it.

    Raises Misconfigured when there is none.
    """
    usual = Path(tempfile.gettempdir())
    if not other_user:
        return usual
    # What is made there gets a name that nobody can guess.
    for candidate in (usual, Path("/var/tmp"), Path("/tmp")):
        if candidate.is_dir() and others_can_reach(candidate):
            return candidate
    raise Misconfigured(
        f"no temporary folder that an ordinary user can reach (tried {usual}, /var/tmp and /tmp): "
        "set TMPDIR to one, or run as an ordinary user"
    )


class HeldFolder:
    """A folder with one live owner, told by a file lock that the kernel drops with the owner.

    A temporary folder goes with its release. What a killed owner left is swept by the next one:
    a folder gets the name that is swept only after its lock is held.
    """

    def __init__(self, wanted: Path | None, *, name: str, other_user: bool) -> None:
        self._wanted = None if wanted is None else Path(wanted).absolute()
        self._name = name
        self._other_user = other_user
        self._path: Path | None = None
        self._lock: int | None = None

    @property
    def is_temporary(self) -> bool:
        """Whether the folder is ours alone and goes with its release."""
        return self._wanted is None

    @property
    def path(self) -> Path:
        """The folder; only while it is held."""
        if self._path is None:
            raise LeaseqBug(f"the folder of {self._name} is not held")
        return self._path

    def hold(self) -> None:
        """Make the folder and take it; nothing when it is held already.

        Raises Misconfigured when another live process holds it or it cannot be made.
        """
        if self._path is not None:
            return
        if self._wanted is not None:
            self._hold_wanted(self._wanted)
            return
        root = temporary_root(other_user=self._other_user)
        self._sweep(root)
        unnamed = Path(tempfile.mkdtemp(prefix="leaseq-new-", dir=root))
        if self._other_user:
            unnamed.chmod(0o711)
        self._lock = self._locked(unnamed)
        self._path = unnamed.rename(root / unnamed.name.replace("-new-", f"-{self._name}-"))

    def release(self) -> None:
        """Give the folder up, and remove it if it was temporary."""
        path, self._path = self._path, None
        lock, self._lock = self._lock, None
        if path is not None and self.is_temporary:
            shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            # Said aloud, because a forked child may still have the file open.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def _hold_wanted(self, wanted: Path) -> None:
        try:
            wanted.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked(wanted)
        except OSError as error:
            raise Misconfigured(
                f"the folder {wanted} cannot be used for {self._name} ({error}): "
                "make it writable, or give another one"
            ) from error
        if self._lock is None:
            owner = self._owner_file(wanted).read_text() or "unknown"
            raise Misconfigured(
                f"the folder {wanted} is in use for {self._name} by process {owner}: "
                "stop that one first, or give another folder"
            )
        self._path = wanted

    def _locked(self, folder: Path) -> int | None:
        """Take the lock and leave our process id in it; None when another owner lives."""
        lock = os.open(self._owner_file(folder), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        os.truncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        return lock

    def _owner_file(self, folder: Path) -> Path:
        return folder / f".{self._name}.owner"

    def _sweep(self, root: Path) -> None:
        for left in root.glob(f"leaseq-{self._name}-*"):
            # Somebody else may be sweeping too, and then it is gone under our hands.
            with suppress(FileNotFoundError):
                self._remove_if_left_behind(left)

    def _remove_if_left_behind(self, folder: Path) -> None:
        if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
            return
        lock = self._locked(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
