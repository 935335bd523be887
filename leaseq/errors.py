"""The exception tree: one class per different reaction of a caller.

LeaseqError
├── Refused                 understood, and will not be done; nothing changed; has .reason
│   ├── AdmissionRefused        mend the request, the budget or the account
│   └── TransitionRefused       the state moved on, or the caller does not own it
├── OwnershipLost           stop working: nothing you write will count
│   └── CancelAsked             stop working: a cancellation was asked for
├── OwnershipUncertain      do nothing irreversible; ask again
├── ProviderError           .outcome is known_failed or unknown (unknown is never a failure)
├── Unavailable             database or broker cannot be reached; nothing was stored
├── Misconfigured           a setting cannot work; says which, why and the mend
└── LeaseqBug               an invariant did not hold: report it
"""

from typing import Any, Literal

from leaseq.vocabulary import AdmissionRefusal, TransitionRefusal


class LeaseqError(Exception):
    """The root of everything leaseq raises; carries ids, never only text."""

    def __init__(self, message: str, **ids: Any) -> None:
        super().__init__(message)
        self.message = message
        self.ids = ids

    def __str__(self) -> str:
        named = ", ".join(f"{name}={value}" for name, value in self.ids.items())
        return f"{self.message} ({named})" if named else self.message


class Refused(LeaseqError):
    """The request is understood and will not be done; nothing has changed (SPEC A5)."""

    def __init__(
        self,
        message: str,
        *,
        reason: AdmissionRefusal | TransitionRefusal,
        **ids: Any,
    ) -> None:
        super().__init__(message, **ids)
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.reason}: {super().__str__()}"


class AdmissionRefused(Refused):
    """No job was stored and no money held (SPEC A2-A4, A7)."""


class TransitionRefused(Refused):
    """The state moved on, or the caller does not own what it would change (SPEC A5)."""


class OwnershipLost(LeaseqError):
    """Stop working: the lease is gone and nothing you write will count (SPEC D4)."""


class CancelAsked(OwnershipLost):
    """Stop working: a cancellation of this job was asked for (SPEC E8)."""


class OwnershipUncertain(LeaseqError):
    """Start nothing irreversible until ownership is known again (SPEC C3)."""


class ProviderError(LeaseqError):
    """A provider did not do what was asked; `unknown` is never a failure (PROMISES P8)."""

    def __init__(
        self, message: str, *, outcome: Literal["known_failed", "unknown"], **ids: Any
    ) -> None:
        super().__init__(message, **ids)
        self.outcome: Literal["known_failed", "unknown"] = outcome


class Unavailable(LeaseqError):
    """The database or the broker cannot be reached; nothing was stored."""


class Misconfigured(LeaseqError):
    """A setting cannot work; the message says which, why and the mend."""


class LeaseqBug(LeaseqError):
    """An invariant did not hold under a lock: this is our fault, report it."""
