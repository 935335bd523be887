"""The whole check is one read-only snapshot: it changes nothing and sees one moment."""

from collections.abc import Callable, Iterator

import pytest
from django.db import InternalError, connection, transaction

from leaseq.models import Account, Job
from leaseq.queries import verify as verify_module
from leaseq.queries.invariants import Invariant, Scope, Violation
from leaseq.queries.verify import verify

pytestmark = pytest.mark.django_db(transaction=True)


def only(monkeypatch: pytest.MonkeyPatch, find: Callable[[Scope], Iterator[Violation]]) -> None:
    one = Invariant(id="T", sentence="Of a test.", subject=Job, find=find)
    monkeypatch.setattr(verify_module, "INVARIANTS", (one,))


def test_a_check_that_would_write_is_refused_by_the_database(
    monkeypatch: pytest.MonkeyPatch, account: Account
) -> None:
    def write(scope: Scope) -> Iterator[Violation]:
        Account.objects.update(is_open=False)
        yield from ()

    only(monkeypatch, write)
    with pytest.raises(InternalError, match="read-only transaction"):
        verify(shown_max=1)
    account.refresh_from_db()
    assert account.is_open


def test_what_others_commit_meanwhile_is_not_seen(
    monkeypatch: pytest.MonkeyPatch, account: Account
) -> None:
    seen: list[int] = []

    def look_twice(scope: Scope) -> Iterator[Violation]:
        seen.append(Account.objects.count())
        other = connection.copy()
        with other.cursor() as cursor:
            cursor.execute(
                'INSERT INTO leaseq_account (name, currency, is_open, "limit", held, settled) '
                "VALUES ('late', 'EUR', true, 1, 0, 0)"
            )
        other.close()
        seen.append(Account.objects.count())
        yield from ()

    only(monkeypatch, look_twice)
    assert verify(shown_max=1).is_green
    assert seen == [1, 1]
    assert Account.objects.count() == 2


def test_it_refuses_to_run_inside_a_transaction(account: Account) -> None:
    with transaction.atomic(), pytest.raises(RuntimeError, match="durable"):
        verify(shown_max=1)


def test_the_shipped_invariants_run_in_the_snapshot(begun: object) -> None:
    verdict = verify(shown_max=1)
    assert verdict.is_green
    assert len(verdict.checked) == len(verify_module.INVARIANTS)
