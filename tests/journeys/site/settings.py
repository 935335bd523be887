"""The example project's settings with the journeys' app, and short waits."""

import os

os.environ.setdefault("LEASEQ_DEBUG", "1")

from project.settings import *  # noqa: E402, F403
from project.settings import INSTALLED_APPS as PROJECT_APPS  # noqa: E402
from project.settings import LEASEQ as PROJECT_LEASEQ  # noqa: E402

INSTALLED_APPS = [*PROJECT_APPS, "tests.journeys.site"]
LEASEQ = PROJECT_LEASEQ | {"CLAIM_GRACE_SECONDS": 1, "SWEEP_SECONDS": 1}
