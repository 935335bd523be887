from typing import Any

import pytest

from leaseq.db import clock
from leaseq.models import Finding, Job
from leaseq.services import findings

pytestmark = pytest.mark.django_db


def open_one(job: Job, kind: str = "odd", **evidence: Any) -> bool:
    return findings.open_finding(
        kind,
        job=job,
        severity="warning",
        evidence=evidence,
        suggested_action="Look at it.",
        now=clock.read(),
    )


def test_a_finding_is_open_once_for_its_kind_and_job(job: Job) -> None:
    assert open_one(job, n=1)
    assert not open_one(job, n=1)
    finding = Finding.objects.get()
    assert (finding.kind, finding.evidence, finding.closed_at) == ("odd", {"n": 1}, None)


def test_new_evidence_is_news_of_the_same_finding(job: Job) -> None:
    open_one(job, n=1)
    opened_at = Finding.objects.get().opened_at
    assert open_one(job, n=2)
    finding = Finding.objects.get()
    assert (finding.evidence, finding.opened_at) == ({"n": 2}, opened_at)


def test_a_finding_closes_when_its_cause_is_gone_and_others_stay(job: Job) -> None:
    open_one(job, "odd")
    open_one(job, "odder")

    findings.close_findings("odd", "never seen", job=job, now=clock.read())

    assert list(Finding.objects.filter(closed_at=None).values_list("kind", flat=True)) == ["odder"]
    assert open_one(job, "odd")
    assert Finding.objects.filter(kind="odd").count() == 2


def test_a_finding_of_one_job_is_none_of_another(admit: Any) -> None:
    one, other = admit(), admit()
    open_one(one)
    assert open_one(other)
    findings.close_findings("odd", job=one, now=clock.read())
    assert Finding.objects.get(closed_at=None).job_id == other.pk
