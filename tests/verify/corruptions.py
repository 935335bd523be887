"""All corruptions by hand, each of which must turn one invariant red."""

from tests.verify.corruptions_attempts import ATTEMPTS
from tests.verify.corruptions_jobs import JOBS
from tests.verify.corruptions_leases import LEASES
from tests.verify.corruptions_money import MONEY

CORRUPTIONS = (*LEASES, *JOBS, *ATTEMPTS, *MONEY)
