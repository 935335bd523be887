"""Priority, then fair share, then age: and the same answer for the same facts."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from leaseq.rules.ordering import Waiting, pick

from .facts import NOW, SECOND


def a_job(number: int, *, account: int = 1, priority: int = 0, age: int = 0) -> Waiting:
    return Waiting(
        job_id=UUID(int=number),
        account_id=account,
        priority=priority,
        age_since=NOW - age * SECOND,
    )


def numbers(picked: list[Waiting]) -> list[int]:
    return [waiting.job_id.int for waiting in picked]


def test_a_higher_priority_goes_first_whatever_its_age() -> None:
    jobs = [a_job(1, age=90), a_job(2, priority=5)]
    assert numbers(pick(jobs, active_by_account={}, n=2)) == [2, 1]


def test_an_account_with_fewer_active_jobs_goes_first() -> None:
    jobs = [a_job(1, account=1, age=90), a_job(2, account=2)]
    assert numbers(pick(jobs, active_by_account={1: 1}, n=2)) == [2, 1]


def test_accounts_take_turns_and_each_account_goes_by_age() -> None:
    jobs = [a_job(n, account=1, age=100 - n) for n in range(1, 5)]
    jobs += [a_job(n, account=2, age=50 - n) for n in range(11, 13)]
    assert numbers(pick(jobs, active_by_account={}, n=6)) == [1, 11, 2, 12, 3, 4]


def test_shares_count_across_priorities() -> None:
    jobs = [a_job(1, priority=9), a_job(2, age=90), a_job(3, account=2)]
    assert numbers(pick(jobs, active_by_account={}, n=3)) == [1, 3, 2]


def test_equal_ages_are_told_apart_by_job_id() -> None:
    assert numbers(pick([a_job(2), a_job(1)], active_by_account={}, n=2)) == [1, 2]


def test_no_more_are_picked_than_asked_for() -> None:
    assert pick([a_job(1)], active_by_account={}, n=0) == []
    assert numbers(pick([a_job(1), a_job(2)], active_by_account={}, n=1)) == [1]


@given(
    jobs=st.lists(
        st.builds(
            a_job,
            st.integers(1, 1000),
            account=st.integers(1, 3),
            priority=st.integers(0, 2),
            age=st.integers(0, 5),
        ),
        max_size=12,
        unique_by=lambda waiting: waiting.job_id,
    ),
    active=st.dictionaries(st.integers(1, 3), st.integers(0, 3)),
    n=st.integers(0, 14),
    chance=st.randoms(use_true_random=False),
)
def test_the_heap_picks_what_a_plain_search_picks_in_any_order_of_input(
    jobs: list[Waiting], active: dict[int, int], n: int, chance: object
) -> None:
    shuffled = list(jobs)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    counts, left = dict(active), list(jobs)
    expected: list[Waiting] = []
    while left and len(expected) < n:
        best = min(
            left,
            key=lambda waiting: (
                -waiting.priority,
                counts.get(waiting.account_id, 0),  # type: ignore[call-overload]
                waiting.age_since,
                waiting.job_id,
            ),
        )
        left.remove(best)
        counts[best.account_id] = counts.get(best.account_id, 0) + 1  # type: ignore[index, call-overload]
        expected.append(best)
    assert pick(shuffled, active_by_account=active, n=n) == expected  # type: ignore[arg-type]
