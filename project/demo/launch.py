"""Become another program that cannot outlive the process that asked for it.

Run by path, isolated and without `site`, so that it starts in a few hundredths of a second and
needs nothing of this project:

    python -I -S launch.py OWNER_PID DEATH_SIGNAL UID GID PROGRAM [ARGUMENT...]

Linux sends DEATH_SIGNAL to PROGRAM when the owner's thread ends, however it ended. Elsewhere the
program is run all the same, and only an orderly stop ends it. A UID of -1 keeps the user.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def drop_to(uid: int, gid: int) -> None:
    """Give up root for good; a change of user also clears the death signal, so it comes first."""
    try:
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    except PermissionError as error:
        sys.exit(f"root may not become user {uid} here ({error}): run as an ordinary user")


def die_with_owner(signal_number: int) -> None:
    """Ask the kernel to send a signal when the owner ends; kept across exec."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        sys.exit(f"prctl failed: {os.strerror(ctypes.get_errno())}")


def main(words: list[str]) -> None:
    """Drop the user, tie the life to the owner's, and become the program."""
    owner, signal_number, uid, gid = (int(word) for word in words[:4])
    program = words[4:]
    if uid >= 0:
        drop_to(uid, gid)
    die_with_owner(signal_number)
    if os.getppid() != owner:
        sys.exit("the owner ended before the program began")
    try:
        os.execv(program[0], program)
    except OSError as error:
        sys.exit(f"{program[0]} cannot be run: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
