"""The local worker as a provider: work done in its own process, over no network (SPEC E1)."""

from datetime import timedelta
from typing import Final, Self

from leaseq.providers import options
from leaseq.providers.base import Capabilities
from leaseq.vocabulary import ProviderClass

CAPABILITIES: Final = Capabilities(
    version=1,
    provider_class=ProviderClass.NEITHER,
    ends_with_connection=True,
    proves_acceptance="the worker's claim, in the transaction that grants the slot",
    proves_start="the task began in a process that holds the lease",
    deadline_field=None,
    cancel_means="the task is asked to stop, then its process is stopped",
    cancel_costs="what was computed until then",
    not_found_means="the holder is gone, and its work with it",
    signature_scheme=None,
    key_lifetime=timedelta(0),
    poll_floor=None,
)


class LocalWorker:
    """A Provider to which nothing is sent: what it computes ends with the holder of the lease.

    The holder stands for the connection in `ends_with_connection` (SPEC L5a).
    """

    endpoint = "local"
    model = ""
    capabilities = CAPABILITIES

    def __init__(self, *, name: str) -> None:
        self.name = name

    @classmethod
    def from_config(cls, name: str, config: options.Config) -> Self:
        """Build it; it has no settings. Raises Misconfigured."""
        options.check_keys(name, config, known=())
        return cls(name=name)
