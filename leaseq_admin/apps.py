"""AppConfig of the operators' pages (SPEC H)."""

from django.apps import AppConfig


class LeaseqAdminConfig(AppConfig):
    """The Django application `leaseq_admin`."""

    name = "leaseq_admin"
    verbose_name = "leaseq operations"
