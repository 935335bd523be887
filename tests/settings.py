"""The example project's settings, as the tests and the type checker read them.

Both run on a developer's own machine, where the project needs no secret of its own.
"""

import os

os.environ.setdefault("LEASEQ_DEBUG", "1")

from project.settings import *  # noqa: F403
