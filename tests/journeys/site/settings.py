"""The example project's settings with the journeys' app, and short waits."""

import os

os.environ.setdefault("LEASEQ_DEBUG", "1")

from project.settings import *  # noqa: F403
from project.settings import INSTALLED_APPS as PROJECT_APPS
from project.settings import LEASEQ as PROJECT_LEASEQ

INSTALLED_APPS = [*PROJECT_APPS, "tests.journeys.site"]
LEASEQ = PROJECT_LEASEQ | {"CLAIM_GRACE_SECONDS": 1, "SWEEP_SECONDS": 1}
