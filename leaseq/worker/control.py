"""The passes of the control plane by name, each with its limits: what a tick or a hand runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from leaseq.controllers import expire, prune, publish, renew, schedule, settle
from leaseq.controllers.base import PassLimits, PassSummary
from leaseq.db.transactions import drop_if_dead
from leaseq.errors import Misconfigured
from leaseq.worker.presence import ProcessIdentity, is_dead, node_name


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlanePass:
    """One pass and its default limits."""

    run_once: Callable[[PassLimits], PassSummary]
    limits: PassLimits


def _expire(limits: PassLimits) -> PassSummary:
    return expire.run_once(limits, witness=expire.Witness(node=node_name(), is_dead=_is_dead))


def _is_dead(process: expire.Process) -> bool | None:
    return is_dead(
        ProcessIdentity(
            node=process.node,
            boot_id=process.boot_id,
            pid=process.pid,
            start_ticks=process.start_ticks,
        )
    )


PASSES: Mapping[str, ControlPlanePass] = {
    "schedule": ControlPlanePass(
        run_once=schedule.run_once, limits=PassLimits(batch=200, seconds=10)
    ),
    "publish": ControlPlanePass(
        run_once=publish.run_once, limits=PassLimits(batch=200, seconds=10)
    ),
    "renew": ControlPlanePass(run_once=renew.run_once, limits=PassLimits(batch=1000, seconds=10)),
    "expire": ControlPlanePass(run_once=_expire, limits=PassLimits(batch=200, seconds=20)),
    "settle": ControlPlanePass(run_once=settle.run_once, limits=PassLimits(batch=200, seconds=20)),
    "prune": ControlPlanePass(run_once=prune.run_once, limits=PassLimits(batch=200, seconds=60)),
}


def run(name: str, *, limits: PassLimits | None = None) -> PassSummary:
    """Run one pass of the control plane, within these limits or its own.

    Raises Misconfigured for a name that no pass has.
    """
    if name not in PASSES:
        raise Misconfigured(
            f"the control plane has no pass {name!r}; it has: {', '.join(PASSES)}. Correct the "
            "`name` in the beat row, or run `manage.py leaseq schedule --reset`"
        )
    # A pool process that keeps its connection must not keep a dead one.
    drop_if_dead()
    known = PASSES[name]
    return known.run_once(limits or known.limits)
