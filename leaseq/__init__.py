"""leaseq: finite, renewable leases for long-queued inference jobs."""

__version__ = "0.1.0"
