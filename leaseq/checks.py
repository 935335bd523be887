"""System checks: each misconfiguration by an id, with its mend (SPEC K2)."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from celery import current_app
from django.conf import settings as django_settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags
from django.core.checks import Warning as Caution
from django.db import connections, router
from django.db.models import Model

from leaseq import conf
from leaseq.conf import Settings
from leaseq.db import clock
from leaseq.errors import Misconfigured
from leaseq.models import ControlPass, Job, ServingPolicy
from leaseq.providers.registry import build_providers
from leaseq.services import ports
from leaseq.worker import beat, beat_rows, consumers

TAG = "leaseq"
READ_COMMITTED = 2
NEEDED_OPTIONS = ("connect_timeout", "tcp_user_timeout")
SECRET_WORDS = ("key", "secret", "token", "password", "authorization")
SILENT_TICKS_MAX = 10
# Rings keep `schedule` going without a beat; the others show whether one ticks.
WATCHED_PASSES = ("schedule", "expire", "renew")


def connect() -> None:
    """Register every check; those that ask the database run with `check --database`."""
    for check in (
        check_time_zone,
        check_content_types,
        check_settings,
        check_authority,
        check_secrets,
        check_providers,
        check_wiring,
        check_isolation,
        check_timeouts,
    ):
        checks.register(check, TAG)
    for check in (check_beat_rows, check_control_plane, check_policies):
        checks.register(check, TAG, Tags.database)


def check_time_zone(**_kwargs: Any) -> list[CheckMessage]:
    """E001: instants without a zone cannot be compared with the authority's clock."""
    if django_settings.USE_TZ:
        return []
    return [
        Error(
            "USE_TZ is off, so Django drops the zone of every instant that leaseq compares.",
            hint="Set USE_TZ = True.",
            id="leaseq.E001",
        )
    ]


def check_content_types(**_kwargs: Any) -> list[CheckMessage]:
    """E002: a worker that takes pickle or yaml runs what anyone at the broker writes (A7)."""
    named = [
        *getattr(django_settings, "CELERY_ACCEPT_CONTENT", ()),
        *getattr(django_settings, "CELERY_RESULT_ACCEPT_CONTENT", ()),
    ]
    unsafe = sorted({*consumers.unsafe_content(), *(consumers.UNSAFE_CONTENT & set(named))})
    if not unsafe:
        return []
    return [
        Error(
            f"Celery takes {' and '.join(unsafe)}: whoever can write to the broker can run code.",
            hint="Set CELERY_ACCEPT_CONTENT = ['json'] (accept_content of your Celery app).",
            id="leaseq.E002",
        )
    ]


def check_settings(**_kwargs: Any) -> list[CheckMessage]:
    """E003: a LEASEQ dict that cannot work, as `conf` says why."""
    try:
        _parsed()
    except Misconfigured as error:
        return [
            Error(
                error.message,
                hint="Correct that key of LEASEQ in your settings module.",
                id="leaseq.E003",
            )
        ]
    return []


def _parsed() -> Settings:
    given = getattr(django_settings, "LEASEQ", {})
    if not isinstance(given, Mapping):
        raise Misconfigured(f"LEASEQ must be a dict, not {type(given).__name__}.")
    return conf.parse(given)


def _sound() -> Settings | None:
    """Return the settings where they can work; where not, E003 alone speaks."""
    try:
        return _parsed()
    except Misconfigured:
        return None


def check_authority(**_kwargs: Any) -> list[CheckMessage]:
    """E004: the authority is one PostgreSQL database (SPEC 0)."""
    settings = _sound()
    if settings is None:
        return []
    alias = settings.database
    if alias not in connections.settings:
        what = f"LEASEQ['DATABASE'] is {alias!r}, and DATABASES has no such alias."
    elif connections[alias].vendor != "postgresql":
        what = f"DATABASES[{alias!r}] is {connections[alias].vendor}, and only PostgreSQL will do."
    else:
        return []
    return [
        Error(
            what,
            hint="Name an alias whose ENGINE is 'django.db.backends.postgresql' in "
            "LEASEQ['DATABASE'].",
            id="leaseq.E004",
        )
    ]


def check_secrets(**_kwargs: Any) -> list[CheckMessage]:
    """E005: settings hold references to secrets, never secrets."""
    settings = _sound()
    if settings is None or not isinstance(settings.providers, Mapping):
        return []
    return [
        Error(
            f"LEASEQ['PROVIDERS'] holds a secret in the clear at {path}.",
            hint="Put {'env': 'NAME_OF_A_VARIABLE'} or a callable there, and change the secret: "
            "it may have been logged.",
            id="leaseq.E005",
        )
        for path in _inline_secrets(settings.providers, path="", secret=False)
    ]


def check_providers(**_kwargs: Any) -> list[CheckMessage]:
    """E006: a provider of LEASEQ that cannot be built, as its adapter says why."""
    settings = _sound()
    if settings is None:
        return []
    try:
        build_providers(settings.providers)
    except Misconfigured as error:
        return [
            Error(
                error.message,
                hint="Correct LEASEQ['PROVIDERS'] in your settings module.",
                id="leaseq.E006",
            )
        ]
    return []


def check_wiring(**_kwargs: Any) -> list[CheckMessage]:
    """E007: no Celery app that leaseq is wired to, so nothing could be admitted or run."""
    try:
        ports.installed()
    except Misconfigured as error:
        return [Error("leaseq is not wired to a Celery app.", hint=error.message, id="leaseq.E007")]
    return []


def _inline_secrets(value: object, *, path: str, secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        if secret and list(value) == ["env"]:
            return
        for key, inner in value.items():
            named = secret or str(key).lower().endswith(SECRET_WORDS)
            yield from _inline_secrets(inner, path=f"{path}[{key!r}]", secret=named)
    elif isinstance(value, (list, tuple)):
        for index, inner in enumerate(value):
            yield from _inline_secrets(inner, path=f"{path}[{index}]", secret=secret)
    elif secret and isinstance(value, (str, bytes)) and value:
        yield path


def _authority_options() -> Mapping[str, Any] | None:
    """Return the OPTIONS of the authority; None where E003 or E004 speak."""
    settings = _sound()
    if settings is None or check_authority():
        return None
    options: Mapping[str, Any] = connections[settings.database].settings_dict["OPTIONS"]
    return options


def check_isolation(**_kwargs: Any) -> list[CheckMessage]:
    """W001: a clock read after a lock must see what was committed while waiting for it."""
    options = _authority_options()
    if options is None:
        return []
    level = options.get("isolation_level", READ_COMMITTED)
    if level == READ_COMMITTED and "transaction_isolation" not in str(options.get("options", "")):
        return []
    return [
        Caution(
            "The authority's connections do not use READ COMMITTED: a decision after a wait for "
            "a lock would be made on rows as they were before, or fail.",
            hint="Remove isolation_level and default_transaction_isolation from its OPTIONS.",
            id="leaseq.W001",
        )
    ]


def check_timeouts(**_kwargs: Any) -> list[CheckMessage]:
    """W002: a silent partition must be an error within seconds, or renewals outlast the lease."""
    options = _authority_options()
    missing = [name for name in NEEDED_OPTIONS if name not in (options or {})]
    if options is None or not missing:
        return []
    return [
        Caution(
            f"The authority's OPTIONS name no {' and no '.join(missing)}: a connection that hangs "
            "would hang for minutes, and every lease it renews would run out.",
            hint="Add 'connect_timeout': 5 (seconds) and 'tcp_user_timeout': 3000 (milliseconds).",
            id="leaseq.W002",
        )
    ]


def _asked(databases: Iterable[str] | None, *, alias: str, model: type[Model]) -> bool:
    """Say whether this check may ask the database, and its table is there already."""
    if _authority_options() is None or alias not in (databases or ()):
        return False
    introspection = connections[alias].introspection
    return model in introspection.installed_models(introspection.table_names())


def check_beat_rows(
    *, databases: Iterable[str] | None = None, **_kwargs: Any
) -> list[CheckMessage]:
    """W003: a tick that is missing, disabled or sent elsewhere never comes."""
    if not beat_rows.is_installed():
        return []
    model = beat_rows.model("PeriodicTask")
    alias = router.db_for_read(model)
    if not _asked(databases, alias=alias, model=model):
        return []
    broken = [row for row in beat_rows.look() if not row.works]
    return [
        Caution(
            f"The beat row {row.title!r} is {row.state}"
            f"{': ' if row.differences else ''}{'; '.join(row.differences)}.",
            hint="Run `manage.py leaseq schedule` to make what is missing, and with --reset to "
            "undo edits; enable a disabled row in the admin. Where another beat sends the "
            "ticks, silence leaseq.W003.",
            id="leaseq.W003",
        )
        for row in broken
    ]


def check_control_plane(
    *, databases: Iterable[str] | None = None, **_kwargs: Any
) -> list[CheckMessage]:
    """W004: jobs wait and the control plane is silent: nobody consumes its queue (case I5)."""
    settings = _sound()
    if settings is None or not _asked(databases, alias=settings.database, model=ControlPass):
        return []
    silence = timedelta(seconds=beat.SCHEDULE_SECONDS * SILENT_TICKS_MAX)
    since = clock.read() - silence
    ran = set(ControlPass.objects.filter(finished_at__gt=since).values_list("name", flat=True))
    silent = [name for name in WATCHED_PASSES if name not in ran]
    if not silent:
        return []
    waiting = Job.objects.filter(queue_deadline_at__isnull=False, submitted_at__lte=since)
    if not waiting.exists():
        return []
    queue = settings.control_queue
    consumed = consumers.control_queue_is_consumed(current_app)
    cause = {
        True: f"a worker consumes the queue {queue!r}, so it seems that no beat runs",
        False: f"no worker consumes the queue {queue!r}",
        None: f"no worker answered whether it consumes the queue {queue!r}",
    }[consumed]
    return [
        Caution(
            f"Jobs wait, and no pass {' or '.join(silent)} finished within "
            f"{silence.total_seconds():g} s: {cause}.",
            hint=f"Start a worker with `--queues {queue}` and one `celery beat`; see also "
            "`manage.py leaseq schedule --check`.",
            id="leaseq.W004",
        )
    ]


def check_policies(*, databases: Iterable[str] | None = None, **_kwargs: Any) -> list[CheckMessage]:
    """W005: permits of queued jobs run out where the renewal pass comes too seldom."""
    settings = _sound()
    if settings is None or not _asked(databases, alias=settings.database, model=ServingPolicy):
        return []
    least = timedelta(seconds=2 * beat.renew_seconds())
    return [
        Caution(
            f"The policy {policy.name!r} has a lease_ttl of {policy.lease_ttl.total_seconds():g} "
            f"s; the renewal pass of queued jobs comes every {beat.renew_seconds():g} s.",
            hint=f"Raise lease_ttl to {least.total_seconds():g} s or more, or lower "
            "LEASEQ['SWEEP_SECONDS'] and run `manage.py leaseq schedule --reset`.",
            id="leaseq.W005",
        )
        for policy in ServingPolicy.objects.filter(lease_ttl__lt=least).order_by("name")
    ]
