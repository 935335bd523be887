"""Who is on the stage: accounts, policies, prices, permit pools, prompts and an operator."""

import secrets
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from django.contrib.auth import get_user_model

from leaseq import api
from leaseq.db import clock
from leaseq.models import Account, PermitPool, Price, ServingPolicy
from leaseq.vocabulary import AdmissionRefusal, PoolKind

CEILING = Decimal("0.05")
POOR_JOBS = 6
POOR_TRIES_MORE = 4
TTL = timedelta(seconds=6)
RENEW_EVERY = timedelta(seconds=2)
PROMPTS = (
    "Name three colours of the rainbow.",
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Why is the sky blue?",
    "Give me a word that rhymes with cat.",
    "What do bees make?",
    "Say good morning in Spanish.",
    "How many legs has a spider?",
    "Name a planet with rings.",
    "What does a clock show?",
    "Finish the sentence: once upon a time",
    "What is bread made of?",
)


@dataclass(frozen=True)
class Admissions:
    """What came of the demo's calls: jobs admitted, and refusals by reason."""

    admitted: int
    refused: dict[AdmissionRefusal, int]
    last_refusal: str


@dataclass(frozen=True)
class Login:
    """A login for the admin, made for this run alone."""

    name: str
    password: str


def set_up() -> Login:
    """Create the accounts, policies, prices, pools and the operator of the demo."""
    now = clock.read()
    Account.objects.create(name="acme", currency="EUR", limit=Decimal(100))
    Account.objects.create(name="shoestring", currency="EUR", limit=CEILING * POOR_JOBS)
    common = {
        "lease_ttl": TTL,
        "renew_every": RENEW_EVERY,
        "cost_ceiling": CEILING,
        "stop_grace": timedelta(seconds=2),
        "retry_base": timedelta(milliseconds=100),
        "retry_cap": timedelta(seconds=1),
    }
    ServingPolicy.objects.create(name="interactive", queue_age_max=timedelta(minutes=30), **common)
    ServingPolicy.objects.create(name="batch", **common)
    PermitPool.objects.create(kind=PoolKind.ACCOUNT, key="acme", limit=4)
    PermitPool.objects.create(kind=PoolKind.POLICY, key="batch", limit=3)
    for unit, amount in (("prompt_token", "0.000002"), ("completion_token", "0.000008")):
        Price.objects.create(
            provider="private", unit=unit, currency="EUR", amount=Decimal(amount), valid_from=now
        )
    login = Login("operator", secrets.token_urlsafe(9))
    get_user_model().objects.create_superuser(login.name, "", login.password)
    return login


def admit_prompts(count: int, *, max_tokens: int) -> Admissions:
    """Admit `count` prompts on two policies and two accounts, one of them too poor for its own."""
    admitted, refused, last = 0, dict[AdmissionRefusal, int](), ""
    poor = [("shoestring", index) for index in range(POOR_JOBS + POOR_TRIES_MORE)]
    rich = [("acme", index) for index in range(count - POOR_JOBS)]
    for account, index in poor + rich:
        policy = "interactive" if index % 3 == 0 else "batch"
        try:
            api.admit(
                "demo.answer",
                args=[PROMPTS[index % len(PROMPTS)]],
                kwargs={"max_tokens": max_tokens},
                account=account,
                policy=policy,
                priority=10 if policy == "interactive" else 0,
                idempotency_key=f"{account}-{index}",
            )
            admitted += 1
        except api.AdmissionRefused as error:
            reason = AdmissionRefusal(error.reason)
            refused[reason] = refused.get(reason, 0) + 1
            last = error.message
    return Admissions(admitted, refused, last)
