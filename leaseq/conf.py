"""One frozen, validated Settings object, read once from `settings.LEASEQ` (SPEC K2)."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed

from leaseq.errors import Misconfigured

MEND = "see the LEASEQ dict in your settings module"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting of leaseq with its unit in the name; each key of LEASEQ is one field."""

    database: str = "default"
    default_queue: str = "leaseq"
    default_policy: str = "default"
    default_account: str | None = None
    control_queue: str = "leaseq-control"

    payload_bytes_max: int = 65_536
    payload_depth_max: int = 32
    result_bytes_max: int = 1_048_576

    claim_grace_seconds: float = 10.0
    sweep_seconds: float = 5.0
    worker_grace_seconds: float = 30.0
    lookahead_per_slot: int = 1
    bell_seconds: float = 0.1

    slots: int | None = None
    safety_margin_seconds: float = 1.0

    retention_days: int = 30
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse values that cannot work, alone or together."""
        for name in ("payload_bytes_max", "payload_depth_max", "result_bytes_max"):
            _demand_positive(name, getattr(self, name))
        for name in ("claim_grace_seconds", "sweep_seconds", "worker_grace_seconds"):
            _demand_positive(name, getattr(self, name))
        _demand_positive("retention_days", self.retention_days)
        if self.slots is not None:
            _demand_positive("slots", self.slots)
        if self.lookahead_per_slot < 0:
            raise Misconfigured(f"LEASEQ['LOOKAHEAD_PER_SLOT'] must be 0 or more; {MEND}")
        if self.control_queue == self.default_queue:
            raise Misconfigured(
                "LEASEQ['CONTROL_QUEUE'] and LEASEQ['DEFAULT_QUEUE'] are the same queue, so busy "
                "workers would starve the control plane; give the control queue a name of its own"
            )


def _demand_positive(name: str, value: object) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not value > 0:  # type: ignore[operator]
        raise Misconfigured(
            f"LEASEQ[{name.upper()!r}] is {value!r} and must be a number above zero; {MEND}"
        )


def parse(given: Mapping[str, Any]) -> Settings:
    """Build Settings from a LEASEQ mapping with upper-case keys.

    Raises Misconfigured for an unknown key (with the nearest known one) or a value that cannot
    work.
    """
    known = {one.name.upper(): one.name for one in fields(Settings)}
    values = {}
    for key, value in given.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
            raise Misconfigured(f"LEASEQ has no key {key!r}; {hint}")
        values[known[key]] = value
    return Settings(**values)


@cache
def settings() -> Settings:
    """Return the Settings of this process; parsed at the first call.

    Raises Misconfigured as `parse` does.
    """
    given = getattr(django_settings, "LEASEQ", {})
    if not isinstance(given, Mapping):
        raise Misconfigured(f"LEASEQ must be a dict, not {type(given).__name__}; {MEND}")
    return parse(given)


def _forget(*, setting: str, **_kwargs: object) -> None:
    if setting == "LEASEQ":
        settings.cache_clear()


setting_changed.connect(_forget, dispatch_uid="leaseq.conf")
