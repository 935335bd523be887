"""manage.py leaseq schedule: install, check or reset the beat rows of the control plane."""

import argparse
import json

from leaseq.worker import beat, beat_rows
from leaseq.worker.beat_rows import RowReport

NAME = "schedule"
HELP = "install the control plane's ticks as django-celery-beat rows, or check or reset them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --check and --reset, of which one may be given."""
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if a tick would not come"
    )
    chosen.add_argument(
        "--reset", action="store_true", help="make every row as it ships, also edited ones"
    )


def run(options: argparse.Namespace) -> int:
    """Do it, print a line for each row, and return 0 where every tick will come."""
    if not beat_rows.is_installed():
        return _without_rows()
    rows = beat_rows.look() if options.check else beat_rows.install(reset=options.reset)
    for row in rows:
        print(_line(row))
    broken = [row.title for row in rows if not row.works]
    if broken:
        mend = "enable them in the admin, or run: manage.py leaseq schedule"
        print(f"Not sent: {', '.join(broken)}. To mend it, {mend}"
              " (with --reset to undo edits).")  # fmt: skip
    return 1 if broken else 0


def _line(row: RowReport) -> str:
    words = [f"{row.title:<18}", f"{row.done or row.state:<10}"]
    words += [f"({'; '.join(row.differences)})"] if row.differences else []
    return " ".join(words).rstrip()


def _without_rows() -> int:
    print(
        "django_celery_beat is not in INSTALLED_APPS, so there are no rows to install.\n"
        "Either add it (pip install 'leaseq[beat]') and run this again, or let Celery's own\n"
        "beat use the schedule as data:\n\n"
        "    from leaseq.worker.beat import beat_schedule\n"
        "    app.conf.beat_schedule = beat_schedule()\n\n"
        f"which is: {json.dumps(beat.beat_schedule(), indent=2)}"
    )
    return 1
