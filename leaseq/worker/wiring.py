"""install(app): what a Celery app needs to know of leaseq, in one call (SPEC D1, K2).

This module is imported before Django's apps are loaded, so it imports no model: Celery resolves
the bootstep by its name when a worker starts.
"""

from celery import Celery
from celery.signals import worker_init, worker_process_init

from leaseq.services import ports
from leaseq.worker import seats
from leaseq.worker.bell import CeleryPorts

BOOTSTEP = "leaseq.worker.bootstep:LeaseBootstep"


def install(app: Celery) -> None:
    """Add the lease bootstep to the app's workers and let this process publish and ring.

    Safe to call twice; the later app counts.
    """
    app.steps["worker"].add(BOOTSTEP)
    worker_init.connect(seats.prepare, weak=False, dispatch_uid="leaseq.seats.prepare")
    worker_process_init.connect(seats.settle_in, weak=False, dispatch_uid="leaseq.seats.settle_in")
    celery_ports = CeleryPorts(app)
    ports.install(
        ports.Ports(
            publish=celery_ports.publish,
            ring=celery_ports.ring,
            ring_later=celery_ports.ring_later,
        )
    )
