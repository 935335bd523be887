"""AppConfig: names the app and connects the checks; no logic (SPEC K2)."""

from django.apps import AppConfig


class LeaseqConfig(AppConfig):
    """The Django application `leaseq`."""

    name = "leaseq"
    verbose_name = "leaseq"
    default_auto_field = "django.db.models.BigAutoField"
