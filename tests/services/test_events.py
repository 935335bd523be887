from datetime import timedelta

import pytest

from leaseq.db import clock
from leaseq.errors import LeaseqBug
from leaseq.models import Job, JobEvent
from leaseq.services.events import JobStory, storable
from leaseq.vocabulary import EndReason, JobState
from tests.services.photograph import photograph

pytestmark = pytest.mark.django_db


def test_a_story_writes_the_job_once_and_an_event_for_each_change(job: Job) -> None:
    story = JobStory(job, actor="user:test", now=clock.read())
    story.change(priority=job.priority, renewals_used=3)
    story.tell("looked", note="x")
    story.tell("reserved", to_state=JobState.RESERVED, reason=EndReason.CLAIMED)
    story.save()

    row = Job.objects.get()
    assert (row.version, row.state, row.renewals_used) == (3, JobState.RESERVED, 3)
    assert row.changed_at == story.now
    events = JobEvent.objects.order_by("version").values_list(
        "version", "kind", "from_state", "to_state", "actor", "reason", "data"
    )
    assert list(events)[1:] == [
        (2, "looked", "admitted", "admitted", "user:test", "", {"note": "x"}),
        (3, "reserved", "admitted", "reserved", "user:test", "claimed", {}),
    ]


def test_a_story_may_go_on_after_it_was_saved(job: Job) -> None:
    story = JobStory(job, actor="user:test", now=clock.read())
    story.tell("one")
    story.save()
    story.tell("two")
    story.save()
    assert list(JobEvent.objects.order_by("version").values_list("kind", flat=True)) == [
        "admitted",
        "one",
        "two",
    ]


def test_a_story_of_a_job_that_is_not_as_it_was_read_is_our_own_bug(job: Job) -> None:
    late = JobStory(Job.objects.get(), actor="user:late", now=clock.read())
    story = JobStory(job, actor="user:test", now=clock.read())
    story.tell("first")
    story.save()
    before = photograph()
    late.tell("second")

    with pytest.raises(LeaseqBug, match="changed under its lock"):
        late.save()

    assert photograph() == before


def test_a_story_is_never_told_backwards(job: Job) -> None:
    story = JobStory(job, actor="user:test", now=job.changed_at - timedelta(hours=1))
    assert story.now == job.changed_at


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        pytest.param("plain", "plain", id="plain"),
        pytest.param("a\0b", "a\N{REPLACEMENT CHARACTER}b", id="NUL"),
        pytest.param("a\ud800b", "a?b", id="half of a surrogate pair"),
        pytest.param("x" * 30, "x" * 20, id="too long"),
        pytest.param("\N{GRINNING FACE}", "\N{GRINNING FACE}", id="beyond 16 bits"),
    ],
)
def test_any_text_becomes_one_that_can_be_kept(text: str, stored: str) -> None:
    assert storable(text, length_max=20) == stored
