"""AppConfig: names the app and connects the checks; no logic (SPEC K2)."""

from django.apps import AppConfig


class LeaseqConfig(AppConfig):
    """The Django application `leaseq`."""

    name = "leaseq"
    verbose_name = "leaseq"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect the system checks; they need the models, which are loaded by now."""
        from leaseq import checks  # noqa: PLC0415 - models are loaded no earlier

        checks.connect()
