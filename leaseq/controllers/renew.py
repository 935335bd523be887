"""Renew what the control plane owns: the permits of jobs that wait in a queue (SPEC B8, N)."""

from leaseq.controllers.base import PassLimits, PassRun, PassSummary
from leaseq.services import leases

NAME = "renew"


def run_once(limits: PassLimits) -> PassSummary:
    """Renew all due leases of the control plane and count verdicts: `renewed`, or the reason.

    A refused lease stays due until it expires, and comes first again. So each batch is widened
    by the refusals of the last, and a full page of them keeps nobody from renewal (case D8).
    """
    run = PassRun(NAME, limits=limits)
    window = limits.batch
    while refused := leases.renew_queued(limit=window):
        looked_at = sum(refused.values())
        run.count("renewed", times=refused.pop("renewed", 0))
        if looked_at < window:
            break
        if not run.has_time():
            run.stop_short()
            break
        window = limits.batch + sum(refused.values())
    for reason, times in refused.items():
        run.count(reason, times=times)
    return run.finish()
