"""The Celery app of the example project; leaseq is installed into it in one line."""

import os

from celery import Celery

from leaseq.worker import wiring

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

app = Celery("project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
wiring.install(app)
