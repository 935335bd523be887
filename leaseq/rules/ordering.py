"""Who is reserved next: priority, fair share between accounts, then age (SPEC A4)."""

import heapq
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One job that may be reserved now.

    `age_since` is the job's original age, which re-admission does not move (SPEC M6); a
    higher `priority` goes first.
    """

    job_id: UUID
    account_id: Hashable
    priority: int
    age_since: datetime


def pick(
    candidates: Iterable[Waiting], *, active_by_account: Mapping[Hashable, int], n: int
) -> list[Waiting]:
    """Return the next `n` jobs in the order in which they are to be reserved.

    Within one priority the account with the fewest active jobs, those picked here included,
    goes first; then the oldest job; then the job id, so that the answer depends on nothing
    but the facts. Costs O(m log m) for m candidates.
    """
    by_priority: dict[int, list[Waiting]] = {}
    for waiting in candidates:
        by_priority.setdefault(waiting.priority, []).append(waiting)
    active = dict(active_by_account)
    picked: list[Waiting] = []
    for priority in sorted(by_priority, reverse=True):
        if len(picked) >= n:
            break
        picked += _share(by_priority[priority], active=active, n=n - len(picked))
    return picked


def _share(equals: list[Waiting], *, active: dict[Hashable, int], n: int) -> list[Waiting]:
    # Newest first, so that the oldest of an account is popped from the end.
    lines: dict[Hashable, list[Waiting]] = {}
    for waiting in sorted(equals, key=_age, reverse=True):
        lines.setdefault(waiting.account_id, []).append(waiting)
    turns = [(active.get(account, 0), *_age(line[-1]), account) for account, line in lines.items()]
    # Job ids differ, so a comparison never reaches the account.
    heapq.heapify(turns)
    picked: list[Waiting] = []
    while turns and len(picked) < n:
        account = heapq.heappop(turns)[-1]
        picked.append(lines[account].pop())
        active[account] = active.get(account, 0) + 1
        if lines[account]:
            heapq.heappush(turns, (active[account], *_age(lines[account][-1]), account))
    return picked


def _age(waiting: Waiting) -> tuple[datetime, UUID]:
    return waiting.age_since, waiting.job_id
