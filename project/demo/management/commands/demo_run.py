"""The part of the demo that knows Django; `manage.py demo` starts it with its services."""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import UUID

from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connection
from rich.console import Console
from rich.live import Live

from leaseq.conf import settings
from leaseq.models import Attempt, Job, Lease
from leaseq.vocabulary import LeaseStatus
from leaseq.worker import beat_rows
from project.demo import picture, report, scene
from project.demo.main import ROOT, parser
from project.demo.picture import Notes, Scene
from project.demo.stage import Stage

MAX_TOKENS = 24
LOOK_EVERY_S = 0.5
LINE_EVERY_S = 3.0
DONE_WITHIN_S = 900.0
RECOVERED_WITHIN_S = 60.0


class _Stopped(Exception):  # noqa: N818 - a wish, no error
    """SIGTERM came."""


class Command(BaseCommand):
    """Runs the demo on the services named in the environment."""

    help = "The inner part of `manage.py demo`; run that instead."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Take the same options as `demo`."""
        _copy_options(parser)

    def handle(self, *_args: Any, **options: Any) -> None:
        """Run, stop everything, and leave with the demo's status."""
        signal.signal(signal.SIGTERM, _raise_stopped)
        stage = Stage(Path(os.environ["LEASEQ_DEMO_LOGS"]))
        try:
            with closing(stage):
                status = _Demo(stage, **{name: options[name] for name in OPTIONS}).run()
        except (KeyboardInterrupt, _Stopped):
            status = 130
        sys.exit(status)


OPTIONS = ("jobs", "no_kill", "keep_serving")


def _copy_options(target: argparse.ArgumentParser) -> None:
    for action in parser()._actions:  # noqa: SLF001 - argparse has no other way to copy options
        if action.dest in OPTIONS:
            target._add_action(action)  # noqa: SLF001


def _raise_stopped(_number: int, _frame: FrameType | None) -> None:
    raise _Stopped


class _Demo:
    """The run itself."""

    def __init__(self, stage: Stage, *, jobs: int, no_kill: bool, keep_serving: bool) -> None:
        self._stage = stage
        self._jobs = jobs
        self._kills = not no_kill
        self._keeps_serving = keep_serving
        self._console = Console()
        self._notes = Notes()

    def run(self) -> int:
        say = self._console.print
        call_command("migrate", verbosity=0)
        login = scene.set_up()
        beat_rows.install(reset=False)
        say("Starting the web server, a control worker with beat, and two pinned workers …")
        self._stage.start_control_worker()
        self._stage.start_web_server()
        self._worker = self._stage.start_gpu_worker("gpu1", slots=2)
        self._stage.start_gpu_worker("gpu2", slots=1)
        admissions = scene.admit_prompts(self._jobs, max_tokens=MAX_TOKENS)
        refused = sum(admissions.refused.values())
        say(f"Admitted {admissions.admitted} prompts on two policies and two accounts.")
        say(f"Refused {refused}, as one account is too poor for all its jobs. The last one said:")
        say(f"  {admissions.last_refusal}", style="yellow")
        done = self._watch()
        status = self._close_books(done=done)
        say(f"\nAdmin: {self._stage.address}   login: {login.name} / {login.password}")
        if self._keeps_serving:
            say("Serving until Ctrl-C …")
            signal.pause()
        else:
            say("It stops now; run with --keep-serving to look around in it.")
        return status

    def _watch(self) -> bool:
        """Show progress until every job has ended and is settled; kill a worker half way."""
        deadline = time.monotonic() + DONE_WITHIN_S
        if not self._console.is_terminal:
            return self._follow(deadline, _Lines(self._console).show)
        with Live(console=self._console, auto_refresh=False) as live:
            return self._follow(
                deadline,
                lambda one: live.update(picture.picture(one, self._notes), refresh=True),
            )

    def _follow(self, deadline: float, show: Callable[[Scene], None]) -> bool:
        killed = not self._kills
        while time.monotonic() < deadline:
            now = picture.look()
            show(now)
            if now.ended == now.total and now.unsettled == 0:
                return True
            if not killed and now.running and now.ended >= now.total // 2:
                self._kill_and_recover(show)
                killed = True
            time.sleep(LOOK_EVERY_S)
        return False

    def _kill_and_recover(self, show: Callable[[Scene], None]) -> None:
        held = Lease.objects.filter(
            status=LeaseStatus.ACTIVE, slot__isnull=False, worker__pid=self._worker.pid
        )
        killed_at = time.monotonic()
        self._worker.kill()
        numbers = dict(held.values_list("job_id", "attempt__number"))
        self._note(f"Killed the worker gpu1 with SIGKILL; jobs that it ran: {len(numbers)}.")
        bound = f"ttl {scene.TTL.total_seconds():g} s, sweep {settings().sweep_seconds:g} s"
        freed = ""
        while time.monotonic() < killed_at + RECOVERED_WITHIN_S:
            show(picture.look())
            if not freed and not held.exists():
                freed = _since(killed_at)
            if freed and _run_again(numbers):
                self._note(
                    f"Its slots were free after {freed} ({bound}); each of its jobs had begun a "
                    f"new attempt on gpu2 after {_since(killed_at)}."
                )
                break
            time.sleep(LOOK_EVERY_S / 5)
        else:
            self._note(f"Its jobs did not run again within {RECOVERED_WITHIN_S:g} s ({bound}).")
        self._worker = self._stage.start_gpu_worker("gpu1", slots=2)
        self._note("A new worker gpu1 offers the same two slots.")

    def _note(self, text: str) -> None:
        self._notes.add(text)
        if not self._console.is_terminal:
            self._console.print(text, style="magenta")

    def _close_books(self, *, done: bool) -> int:
        for note in self._notes.lines if self._console.is_terminal else ():
            self._console.print(note, style="magenta")
        gathered = report.rows()
        for table in report.tables(gathered):
            self._console.print(table)
        for prompt, text in report.answers(3):
            self._console.print(f"[dim]{prompt}[/dim] {text}")
        others = report.other_endings()
        if others:
            self._console.print(f"Attempts that ended otherwise: {others}.")
        wrong = report.imbalances(gathered)
        if not done:
            open_jobs = Job.objects.filter(settled_at__isnull=True).count()
            wrong.append(f"{open_jobs} jobs did not end and settle; logs: {self._stage.logs}")
        for one in wrong:
            self._console.print(f"✗ {one}", style="bold red")
        connection.close()
        verify = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), "leaseq", "verify", "--brief"],
            check=False,
            cwd=ROOT,
        )
        if not wrong and verify.returncode == 0:
            self._console.print("✓ The books balance and every invariant holds.", style="green")
            return 0
        return 1


class _Lines:
    """One line now and then, where the output is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next = 0.0

    def show(self, one: Scene) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LINE_EVERY_S
            self._console.print(picture.line(one))


def _run_again(numbers: dict[UUID, int]) -> bool:
    started = Attempt.objects.filter(job__in=numbers, started_at__isnull=False)
    latest = dict(started.order_by("number").values_list("job_id", "number"))
    return all(latest.get(job_id, 0) > number for job_id, number in numbers.items())


def _since(moment: float) -> str:
    return f"{time.monotonic() - moment:.1f} s"
