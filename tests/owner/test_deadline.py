"""A deadline measured from before the send (SPEC C1)."""

from datetime import timedelta
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaseq.errors import LeaseqBug, Misconfigured
from leaseq.owner.deadline import NOTHING, Deadline

TEN = timedelta(seconds=10)
instants = st.floats(min_value=0, max_value=1e9)
spans = st.timedeltas(min_value=timedelta(days=-1), max_value=timedelta(days=365))
margins = st.timedeltas(min_value=NOTHING, max_value=timedelta(days=1))


def test_a_slow_answer_does_not_lengthen_the_lease() -> None:
    asked_at, answered_at = 100.0, 107.0
    deadline = Deadline.measured(asked_at=asked_at, remaining=TEN, margin=NOTHING)
    assert deadline.remaining(answered_at) == timedelta(seconds=3)


@pytest.mark.parametrize(
    ("now", "passed", "left"),
    [
        pytest.param(108.5, False, 0.5, id="just before"),
        pytest.param(109.0, True, 0.0, id="at it"),
        pytest.param(109.5, True, 0.0, id="after it"),
    ],
)
def test_it_passes_at_its_instant(now: float, passed: bool, left: float) -> None:
    deadline = Deadline.measured(asked_at=100.0, remaining=TEN, margin=timedelta(seconds=1))
    assert deadline.passed(now) is passed
    assert deadline.remaining(now) == timedelta(seconds=left)


@given(asked_at=instants, remaining=spans, margin=margins)
def test_it_is_never_later_than_the_authority_allows(
    asked_at: float, remaining: timedelta, margin: timedelta
) -> None:
    deadline = Deadline.measured(asked_at=asked_at, remaining=remaining, margin=margin)
    assert deadline.at <= asked_at + remaining.total_seconds()
    assert deadline.passed(asked_at + remaining.total_seconds())


@given(at=instants, now=instants, later=instants)
def test_once_passed_it_stays_passed(at: float, now: float, later: float) -> None:
    deadline = Deadline(at)
    first, second = sorted((now, later))
    assert deadline.passed(second) or not deadline.passed(first)
    assert deadline.passed(now) is (deadline.at - now <= 0)


@pytest.mark.parametrize("endless", [inf, -inf, nan])
def test_an_endless_deadline_is_refused(endless: float) -> None:
    with pytest.raises(LeaseqBug, match="finite"):
        Deadline(endless)


def test_a_negative_margin_is_refused_with_the_mend() -> None:
    with pytest.raises(Misconfigured, match="set it to zero or more"):
        Deadline.measured(asked_at=0.0, remaining=TEN, margin=timedelta(seconds=-1))
