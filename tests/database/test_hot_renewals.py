from collections.abc import Callable

import pytest
from django.db import connection

from leaseq.models import Account, Job, Lease
from leaseq.services import leases
from leaseq.services.leases import Renewal
from tests.conftest import register_worker
from tests.services import stages

pytestmark = pytest.mark.django_db(transaction=True)

UPDATES = """
SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'leaseq_lease'
"""


def updates() -> tuple[int, int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(UPDATES)
        row = cursor.fetchone()
    assert row is not None
    return row[0], row[1]


def test_renewals_touch_no_index(admit: Callable[..., Job]) -> None:
    """SPEC B8: fifty leases renewed two hundred times, and every update stays on its page."""
    Account.objects.update(limit=1000)
    crew = register_worker("crew@here", slots=50)
    for _ in range(50):
        admit()
    held = [stages.claim(job, crew, slot=index) for index, job in enumerate(stages.queue_up())]
    wishes = [Renewal(proof=one.proof) for one in held]
    changed_before, hot_before = updates()

    for _ in range(200):
        assert len(leases.renew_many(wishes)) == 50

    changed, hot = updates()
    assert changed - changed_before == 200 * 50
    assert hot - hot_before == changed - changed_before
    assert set(Lease.objects.values_list("renewal_count", flat=True)) == {200}
