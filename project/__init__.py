"""The example project: a Django site and a Celery app with leaseq in it."""

from project.celery import app as celery_app

__all__ = ["celery_app"]
