"""`manage.py demo`: the main job, on services of its own, from admission to settled money.

This part starts PostgreSQL, the broker and the model server from wheels, and knows no Django;
the rest runs as `manage.py demo_run` with their addresses in its environment.
"""

import argparse
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from leaseq.errors import LeaseqError
from project.demo.services import EmbeddedBroker, EmbeddedPostgres, ModelServer, require_packages

JOBS_MIN, JOBS_MAX = 12, 2_000
ROOT = Path(__file__).resolve().parents[2]
EXIT_UNAVAILABLE = 2
INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Run the demo; 0: all balanced, 1: an invariant or the books broke, 2: it could not run."""
    options = parser().parse_args(arguments)
    try:
        status = _run(options)
    except LeaseqError as error:
        print(f"demo: {error}", file=sys.stderr)
        return EXIT_UNAVAILABLE
    except KeyboardInterrupt:
        status = INTERRUPTED
    if status == INTERRUPTED:
        print("demo: interrupted; everything it started is stopped", file=sys.stderr)
    return status


def parser() -> argparse.ArgumentParser:
    """Return the command line of `demo` and of `demo_run`."""
    made = argparse.ArgumentParser(
        prog="manage.py demo",
        description="Serve real prompts with a small language model through leased Celery "
        "workers, kill one worker half way, and settle every token.",
        epilog="example: manage.py demo --jobs 60 --keep-serving",
    )
    made.add_argument("--jobs", type=_job_count, default=40, help="prompts to admit (40)")
    made.add_argument("--no-kill", action="store_true", help="do not kill a worker half way")
    made.add_argument(
        "--keep-serving",
        action="store_true",
        help="keep the admin and the workers up at the end, until Ctrl-C",
    )
    return made


def _job_count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if not JOBS_MIN <= count <= JOBS_MAX:
        raise argparse.ArgumentTypeError(f"{count} is not from {JOBS_MIN} to {JOBS_MAX}")
    return count


def _run(options: argparse.Namespace) -> int:
    require_packages()
    with ExitStack() as services:
        logs = Path(services.enter_context(tempfile.TemporaryDirectory(prefix="leaseq-demo-")))
        print("Starting PostgreSQL, the broker and the model server …", flush=True)
        postgres = services.enter_context(EmbeddedPostgres())
        broker = services.enter_context(EmbeddedBroker())
        model = services.enter_context(ModelServer(slots=3, context_tokens=3_072))
        environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "LEASEQ_DEBUG": "1",
            "LEASEQ_SECRET_KEY": secrets.token_urlsafe(40),
            "LEASEQ_DATABASE_URL": postgres.url,
            "LEASEQ_BROKER_URL": broker.url,
            "LEASEQ_MODEL_URL": f"{model.url}/v1",
            "LEASEQ_SWEEP_SECONDS": "1",
            "LEASEQ_DEMO_LOGS": str(logs),
        }
        return _run_inside(options, environment)


def _run_inside(options: argparse.Namespace, environment: dict[str, str]) -> int:
    command = [sys.executable, str(ROOT / "manage.py"), "demo_run", "--jobs", str(options.jobs)]
    command += ["--no-kill"] * options.no_kill + ["--keep-serving"] * options.keep_serving
    process = subprocess.Popen(command, env=environment, cwd=ROOT)
    # A Ctrl-C reaches both; the inner part stops its workers, then this part its services.
    previous = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                print("\ndemo: stopping the workers …", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, previous)
