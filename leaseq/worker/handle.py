"""The lease as task code holds it: guard(), lost, progress(), usage, fenced(), infer() (C4)."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from decimal import Decimal
from typing import Any
from uuid import UUID

from leaseq.controllers import serve
from leaseq.controllers.serve import Completion, Persist
from leaseq.errors import OwnershipUncertain
from leaseq.services import attempts, metering
from leaseq.services.attempts import Claimed
from leaseq.vocabulary import Certainty
from leaseq.worker.board import BoardGuard


class Lease:
    """What a running task may do with the attempt it owns.

    Everything that writes is refused once the attempt has another owner or has ended.
    """

    def __init__(
        self, claimed: Claimed, guard: BoardGuard, *, provider: str, persist: Persist
    ) -> None:
        self._persist = persist
        self._claimed = claimed
        self._guard = guard
        self._provider = provider

    @property
    def job_id(self) -> UUID:
        """The job's id."""
        return self._claimed.job_id

    @property
    def attempt_id(self) -> UUID:
        """The attempt's id: a name for side effects that another attempt must not repeat."""
        return self._claimed.proof.attempt_id

    @property
    def attempt_number(self) -> int:
        """Which try of the job this is, from 1."""
        return self._claimed.attempt_number

    @property
    def lost(self) -> bool:
        """Whether the task must stop: the lease is gone or a cancellation was asked for."""
        return self._guard.certainty() is Certainty.LOST or self._guard.cancel_asked()

    @property
    def certainty(self) -> Certainty:
        """What may be believed of the lease now; no I/O."""
        return self._guard.certainty()

    def guard(self) -> None:
        """Return where the lease is certainly held; no I/O, so call it as often as you like.

        Raises OwnershipLost, CancelAsked (stop) or OwnershipUncertain (start nothing
        irreversible, ask again).
        """
        self._guard.check()

    def progress(self, **report: Any) -> None:
        """Report progress; small JSON. `usage={unit: quantity}` is booked if the attempt is lost.

        Waits for a database that is away. Raises TransitionRefused once the attempt has another
        owner or has ended, OwnershipLost where the lease ran out first.
        """
        self._persist(lambda: attempts.progress(self._claimed.proof, report=report))

    def record_usage(self, unit: str, quantity: Decimal | int, *, model: str = "") -> None:
        """Add what was consumed of one unit; it is priced now and settled at the job's end.

        Raises TransitionRefused, also for a quantity that is negative or not exact. A database
        that is away is an error here: adding again what may stand already would count it twice.
        """
        metering.record_usage(self._claimed.proof, unit=unit, quantity=quantity, model=model)

    def fenced(self) -> AbstractContextManager[None]:
        """Open a transaction whose writes are committed only while this attempt owns its lease.

        Keep it short: the job waits for it. Give the writes a key of the job's, for a process can
        be killed between this commit and the end of the attempt, and the next attempt comes here
        again. Raises OwnershipLost, having committed nothing.
        """
        return metering.fenced(self._claimed.proof)

    def infer(self, payload: Mapping[str, Any]) -> Completion:
        """Send one chat completion to the task's provider and return the whole reply.

        Acceptance, start, progress and usage are recorded as they come. Once per attempt. Raises
        ProviderError, OwnershipLost, CancelAsked, OwnershipUncertain (nothing was sent), and
        TransitionRefused at the dispatch gate.
        """
        self.guard()
        return serve.infer(
            self._claimed.proof,
            provider_name=self._provider,
            payload=payload,
            check=self._must_stop,
            persist=self._persist,
        )

    def _must_stop(self) -> bool:
        try:
            self._guard.check()
        except OwnershipUncertain:
            # Work that runs already goes on while the authority is asked (SPEC C1).
            return False
        return False
