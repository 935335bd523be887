"""One request through the provider `private`, for the tests of serving."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

from leaseq.controllers import serve
from leaseq.models import Attempt, ProviderRequest, UsageRecord
from leaseq.services.attempts import Claimed

T = TypeVar("T")
PAYLOAD = {"messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 16}


def once(act: Callable[[], T]) -> T:
    """Do it; the database answers."""
    return act()


def go_on() -> bool:
    """The check of an owner that holds its lease."""
    return False


def infer(claimed: Claimed, **replaced: Any) -> serve.Completion:
    asked: dict[str, Any] = {
        "provider_name": "private",
        "payload": PAYLOAD,
        "check": go_on,
        "persist": once,
    }
    return serve.infer(claimed.proof, **asked | replaced)


def the_request() -> ProviderRequest:
    return ProviderRequest.objects.get()


def the_attempt(number: int = 1) -> Attempt:
    return Attempt.objects.get(number=number)


def the_usage() -> dict[str, tuple[Decimal, Decimal | None]]:
    return {line.unit: (line.quantity, line.cost) for line in UsageRecord.objects.all()}
