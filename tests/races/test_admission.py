from dataclasses import replace
from decimal import Decimal
from functools import partial

import pytest

from leaseq.db.transactions import atomic
from leaseq.errors import AdmissionRefused
from leaseq.models import Account, Hold, Job, LedgerEntry, ServingPolicy
from leaseq.services import admission
from leaseq.services.admission import AdmissionRequest, Admitted
from leaseq.vocabulary import AdmissionRefusal
from tests.conftest import RecordingPorts
from tests.races.conftest import Session, at_once, until_waiting
from tests.services.photograph import photograph

pytestmark = [pytest.mark.race, pytest.mark.django_db(transaction=True)]

KEYED = AdmissionRequest(
    task="tests.nothing", queue="gpu", account="acme", policy="batch", idempotency_key="order-1"
)
FREE = AdmissionRequest(task="tests.nothing", queue="gpu", account="acme", policy="batch")
admit = partial(admission.admit, actor="user:test")


@pytest.fixture(autouse=True)
def known_names(account: Account, policy: ServingPolicy) -> None:
    """The account and the policy that the request names."""


def test_two_admissions_with_one_key_make_one_job(first: Session, second: Session) -> None:
    """Case G3, the winner commits.

    first   BEGIN  admit(k): stored .......................... COMMIT
    second                  admit(k): waits for the account ---------> finds the first's job
    """
    first.begin()
    won = first.do(lambda: admit(KEYED))
    waits = second.start(lambda: admit(KEYED))
    until_waiting()
    first.commit()
    lost = waits.result(20)

    assert (lost.job_id, lost.created) == (won.job_id, False)
    assert Job.objects.count() == Hold.objects.count() == 1
    assert Account.objects.get().held == Decimal(1)


def test_whoever_waited_for_a_winner_that_vanished_admits_the_job_itself(
    first: Session, second: Session
) -> None:
    """Case G3, the winner rolls back.

    first   BEGIN  admit(k): stored .......................... ROLLBACK
    second                  admit(k): waits for the account -----------> stores its own job
    """
    first.begin()
    vanished = first.do(lambda: admit(KEYED))
    waits = second.start(lambda: admit(KEYED))
    until_waiting()
    first.roll_back()
    won = waits.result(20)

    assert won.created
    assert Job.objects.get().pk == won.job_id != vanished.job_id
    assert Account.objects.get().held == Decimal(1)


def test_five_submissions_of_which_four_roll_back_leave_one_job() -> None:
    """Case G3: five sessions at one barrier, one key; four of them fail after their admission."""

    def fails() -> Admitted:
        with atomic():
            admit(KEYED)
            raise ZeroDivisionError

    came = at_once(*[fails] * 4, lambda: admit(KEYED))

    survivor = came[-1]
    assert isinstance(survivor, Admitted)
    assert all(isinstance(one, ZeroDivisionError) for one in came[:-1])
    assert Job.objects.get().pk == survivor.job_id
    assert LedgerEntry.objects.count() == 1


def test_a_key_is_known_even_where_its_job_took_the_last_money(
    first: Session, second: Session
) -> None:
    """The loser of the race finds no money, and is told of the job and not of a shortfall.

    first   BEGIN  admit(k): takes all ....... COMMIT
    second                  admit(k): waits ----------> no money left, but the key is known
    """
    Account.objects.update(limit=1)
    first.begin()
    won = first.do(lambda: admit(KEYED))
    waits = second.start(lambda: admit(KEYED))
    until_waiting()
    first.commit()

    assert waits.result(20).job_id == won.job_id


def test_sixty_four_admissions_at_once_spend_no_more_than_the_account_has() -> None:
    """Case O1: sixty-four sessions at one barrier, ten euros, one euro each."""
    Account.objects.update(limit=10)

    came = at_once(*[lambda: admit(FREE)] * 64)

    admitted = [one for one in came if isinstance(one, Admitted)]
    refused = [one for one in came if isinstance(one, AdmissionRefused)]
    assert (len(admitted), len(refused)) == (10, 54)
    assert {one.reason for one in refused} == {AdmissionRefusal.INSUFFICIENT_FUNDS}
    assert Account.objects.get().held == Decimal(10)
    assert Job.objects.count() == Hold.objects.count() == LedgerEntry.objects.count() == 10


def test_an_admission_in_a_block_that_rolls_back_leaves_and_rings_nothing(
    first: Session, recording_ports: RecordingPorts
) -> None:
    """Case H1, the caller's block fails.

    caller  BEGIN  admit ... ROLLBACK
    anyone                             sees nothing, hears nothing
    """
    before = photograph()
    first.begin()
    first.do(lambda: admit(FREE))
    first.roll_back()

    assert photograph() == before
    assert recording_ports.rings == []


def test_an_admission_is_seen_and_rung_once_the_callers_block_has_committed(
    first: Session, recording_ports: RecordingPorts
) -> None:
    """Cases H1 and H3: the ids are known at once, the bell comes after the commit.

    caller  BEGIN  admit: ids ............... COMMIT  ring
    anyone                    sees nothing            sees the job
    """
    first.begin()
    admitted = first.do(lambda: admit(FREE))
    assert admitted.attempt_id is not None
    assert Job.objects.count() == 0
    assert recording_ports.rings == []

    first.commit()

    assert Job.objects.get().pk == admitted.job_id
    assert recording_ports.rings == ["schedule"]


def test_a_refusal_inside_a_callers_block_harms_nothing_else_of_it(
    first: Session,
) -> None:
    """The caller catches the refusal and goes on: its other admission is committed."""

    def refused() -> AdmissionRefusal:
        with pytest.raises(AdmissionRefused) as refusal:
            admit(replace(FREE, cost_ceiling=1000))
        assert isinstance(refusal.value.reason, AdmissionRefusal)
        return refusal.value.reason

    first.begin()
    admitted = first.do(lambda: admit(FREE))
    assert first.do(refused) is AdmissionRefusal.INSUFFICIENT_FUNDS
    first.commit()

    assert Job.objects.get().pk == admitted.job_id
    assert Account.objects.get().held == Decimal(1)
