"""Every state, outcome and reason as a closed list: the words of SPEC 0.

A value outside a list is refused by the database too (a CHECK per column).
"""

from enum import StrEnum


class JobState(StrEnum):
    """Where the logical unit of work stands (SPEC A1)."""

    ADMITTED = "admitted"
    RESERVED = "reserved"
    QUEUED = "queued"
    DISPATCHING = "dispatching"
    PROVIDER_ACCEPTED = "provider_accepted"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"


TERMINAL_JOB_STATES = frozenset(
    {JobState.COMPLETED, JobState.CANCELLED, JobState.EXPIRED, JobState.FAILED}
)
EXECUTING_JOB_STATES = frozenset(
    {JobState.DISPATCHING, JobState.PROVIDER_ACCEPTED, JobState.RUNNING}
)


class AttemptState(StrEnum):
    """Open, waiting for a verdict, or closed with one outcome (SPEC 0)."""

    OPEN = "open"
    OUTCOME_UNKNOWN = "outcome_unknown"
    COMPLETED = "completed"
    FAILED = "failed"
    LOST = "lost"
    RESERVATION_EXPIRED = "reservation_expired"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    COMPLETED_AFTER_CANCEL = "completed_after_cancel"


UNCLOSED_ATTEMPT_STATES = frozenset({AttemptState.OPEN, AttemptState.OUTCOME_UNKNOWN})


class LeaseStatus(StrEnum):
    """Whether the row still grants a right, and if not, how it ended (SPEC 0)."""

    ACTIVE = "active"
    RELEASED = "released"
    EXPIRED = "expired"
    REVOKED = "revoked"
    TRANSFERRED = "transferred"


class ResourceType(StrEnum):
    """What a lease is a right to (SPEC B2). Money is never leased: it is held."""

    SLOT = "slot"
    PERMIT = "permit"


class HoldState(StrEnum):
    """The life of an authorisation of money (SPEC F2)."""

    HELD = "held"
    SETTLED = "settled"
    RELEASED = "released"
    EXPIRED = "expired"
    REVERSED = "reversed"


class RequestState(StrEnum):
    """One submission to one provider (SPEC 0). Unknown is the only word for not knowing."""

    PREPARED = "prepared"
    UNKNOWN = "unknown"
    ACCEPTED = "accepted"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ABORTED = "aborted"
    REJECTED = "rejected"
    EXPIRED = "expired"
    MONITORING_ENDED = "monitoring_ended"


OPEN_REQUEST_STATES = frozenset(
    {
        RequestState.PREPARED,
        RequestState.UNKNOWN,
        RequestState.ACCEPTED,
        RequestState.RUNNING,
        RequestState.CANCELLING,
    }
)


class EntryKind(StrEnum):
    """Why money moved (SPEC 0, LedgerEntry)."""

    HOLD = "hold"
    RELEASE = "release"
    SETTLE = "settle"
    REVERSE = "reverse"
    ADJUST = "adjust"


class Book(StrEnum):
    """The three piles of an account between which an entry moves money (PROMISES M1)."""

    AVAILABLE = "available"
    HELD = "held"
    SETTLED = "settled"


class PoolKind(StrEnum):
    """What a permit pool limits (SPEC 0, PermitPool)."""

    ACCOUNT = "account"
    QUEUE = "queue"
    POLICY = "policy"
    PROVIDER = "provider"


class WorkerState(StrEnum):
    """A worker process by incarnation (SPEC M8)."""

    LIVE = "live"
    DRAINING = "draining"
    STOPPED = "stopped"
    DEAD = "dead"


class ProviderClass(StrEnum):
    """What a provider offers against a duplicate (PROMISES 2.1)."""

    KEYED = "A"
    CANCELLABLE = "B"
    NEITHER = "C"


class NoPermit(StrEnum):
    """What a policy does with a job for which no permit is free (SPEC A4)."""

    WAIT = "wait"
    REFUSE = "refuse"


class BoundHit(StrEnum):
    """What a policy does with a job that hit a bound (SPEC B7)."""

    DEAD_LETTER = "dead_letter"
    FAIL = "fail"


class Handoff(StrEnum):
    """How long an accepted request keeps the slot that sent it (SPEC E4)."""

    RELEASE_AT_ACCEPTANCE = "release_at_acceptance"
    HOLD_UNTIL_START = "hold_until_start"
    HOLD_UNTIL_DONE = "hold_until_done"


class KeepReason(StrEnum):
    """Why money stays held although somebody asked to close the hold (SPEC F2, M3)."""

    JOB_NOT_TERMINAL = "job_not_terminal"
    OUTCOME_UNKNOWN = "outcome_unknown"
    NO_EVIDENCE = "no_evidence"
    UNPRICED_USAGE = "unpriced_usage"
    POSSIBLY_SENT = "possibly_sent"


class AdmissionRefusal(StrEnum):
    """Why a job was not admitted (SPEC A3, A4, A7)."""

    UNKNOWN_TASK = "unknown_task"
    UNKNOWN_POLICY = "unknown_policy"
    UNKNOWN_ACCOUNT = "unknown_account"
    ACCOUNT_CLOSED = "account_closed"
    POLICY_CLOSED = "policy_closed"
    PAYLOAD_NOT_JSON = "payload_not_json"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    PAYLOAD_TOO_DEEP = "payload_too_deep"
    BAD_ARGUMENT = "bad_argument"
    BAD_MONEY = "bad_money"
    NO_COST_CEILING = "no_cost_ceiling"
    INSUFFICIENT_FUNDS = "insufficient_funds"
    NO_PERMIT_FREE = "no_permit_free"
    KEY_REUSED = "key_reused"


class RenewalRefusal(StrEnum):
    """Why a lease was not renewed (SPEC B4), in the order in which causes are judged."""

    UNKNOWN_LEASE = "unknown_lease"
    STALE_OWNER = "stale_owner"
    WRONG_ATTEMPT = "wrong_attempt"
    VERSION_CHANGED = "version_changed"
    LEASE_ENDED = "lease_ended"
    LEASE_EXPIRED = "lease_expired"
    CLOCK_STEPPED_BACK = "clock_stepped_back"
    ATTEMPT_CLOSED = "attempt_closed"
    JOB_TERMINAL = "job_terminal"
    CANCEL_ASKED = "cancel_asked"
    POLICY_CLOSED = "policy_closed"
    LEASE_LIFE_SPENT = "lease_life_spent"
    QUEUE_AGE_SPENT = "queue_age_spent"
    RESERVED_TIME_SPENT = "reserved_time_spent"
    RENEWAL_BUDGET_SPENT = "renewal_budget_spent"
    RUN_LIMIT_SPENT = "run_limit_spent"
    PROVIDER_WAIT_SPENT = "provider_wait_spent"
    NO_LIVE_WORKER = "no_live_worker"
    NO_PROGRESS = "no_progress"


class TransitionRefusal(StrEnum):
    """Why a change of job, attempt, lease, hold or request was not made (SPEC A5)."""

    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_ATTEMPT = "unknown_attempt"
    NOT_A_LEGAL_MOVE = "not_a_legal_move"
    JOB_TERMINAL = "job_terminal"
    ATTEMPT_CLOSED = "attempt_closed"
    NOT_THE_CURRENT_ATTEMPT = "not_the_current_attempt"
    STALE_OWNER = "stale_owner"
    LEASE_ENDED = "lease_ended"
    LEASE_EXPIRED = "lease_expired"
    CANCEL_ASKED = "cancel_asked"
    NOT_QUEUED = "not_queued"
    NOT_YET_DUE = "not_yet_due"
    NO_PERMIT_FREE = "no_permit_free"
    NO_FREE_SLOT = "no_free_slot"
    SLOT_NOT_OURS = "slot_not_ours"
    WRONG_QUEUE = "wrong_queue"
    WORKER_NOT_LIVE = "worker_not_live"
    RESERVATION_EXPIRED = "reservation_expired"
    HOLD_NOT_OPEN = "hold_not_open"
    HOLD_EXPIRED = "hold_expired"
    QUEUE_AGE_SPENT = "queue_age_spent"
    ALREADY_DISPATCHED = "already_dispatched"
    OUTCOME_UNKNOWN = "outcome_unknown"
    SENT_IS_STICKY = "sent_is_sticky"
    BAD_REPORT = "bad_report"
    OUT_OF_ORDER = "out_of_order"


class EndReason(StrEnum):
    """Why a lease, attempt, hold or job ended (PROMISES J10: a closed list)."""

    COMPLETED = "completed"
    TASK_ERROR = "task_error"
    TASK_RETRY = "task_retry"
    RESULT_NOT_JSON = "result_not_json"
    RESULT_TOO_LARGE = "result_too_large"
    LEASE_EXPIRED = "lease_expired"
    WORKER_LOST = "worker_lost"
    WORKER_SHUTDOWN = "worker_shutdown"
    RESERVATION_EXPIRED = "reservation_expired"
    CLAIMED = "claimed"
    ATTEMPT_ENDED = "attempt_ended"
    CANCELLED = "cancelled"
    REVOKED_BY_OPERATOR = "revoked_by_operator"
    PROVIDER_REJECTED = "provider_rejected"
    PROVIDER_FAILED = "provider_failed"
    PROVIDER_UNKNOWN = "provider_unknown"
    HOLDER_STOPPED = "holder_stopped"
    MONITORING_ENDED = "monitoring_ended"
    MAX_QUEUE_AGE = "max_queue_age"
    MAX_LEASE_LIFE = "max_lease_life"
    MAX_RESERVED_TIME = "max_reserved_time"
    MAX_RENEWALS = "max_renewals"
    MAX_ATTEMPTS = "max_attempts"
    MAX_RUN_TIME = "max_run_time"
    MAX_PROVIDER_WAIT = "max_provider_wait"
    STALLED = "stalled"
    HOLD_EXPIRED = "hold_expired"
    USAGE_SETTLED = "usage_settled"
    NEVER_SENT = "never_sent"
    NO_USAGE = "no_usage"


class Certainty(StrEnum):
    """What the holder may believe of its own lease (SPEC C3)."""

    CERTAIN = "certain"
    UNCERTAIN = "uncertain"
    LOST = "lost"


class HolderReason(StrEnum):
    """Why a holder doubts or gives up its own lease, where no authority said so (SPEC C1-C3)."""

    DEADLINE_PASSED = "deadline_passed"
    NO_ANSWER = "no_answer"
    RELEASED = "released"
    BOARD_UNREADABLE = "board_unreadable"
