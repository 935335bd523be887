"""Settings of the example project; what differs per machine comes from the environment.

LEASEQ_DATABASE_URL   postgres://user:password@host:5432/name
LEASEQ_BROKER_URL     redis://host:6379/0 or amqp://…
LEASEQ_MODEL_URL      base address of an OpenAI-compatible server
LEASEQ_SECRET_KEY     Django's SECRET_KEY; needed unless LEASEQ_DEBUG=1
"""

import os
from pathlib import Path

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

BASE_DIR = Path(__file__).resolve().parent.parent
DEBUG = os.environ.get("LEASEQ_DEBUG") == "1"
SECRET_KEY = os.environ.get("LEASEQ_SECRET_KEY") or ("local-use-only" * 4 if DEBUG else "")
if not SECRET_KEY:
    raise ImproperlyConfigured("Set LEASEQ_SECRET_KEY, or LEASEQ_DEBUG=1 on your own machine.")
ALLOWED_HOSTS = os.environ.get("LEASEQ_ALLOWED_HOSTS", "127.0.0.1,localhost").split(",")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_celery_beat",
    "leaseq",
    "leaseq_admin",
    "project.demo",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"

DATABASES = {
    "default": dj_database_url.parse(
        os.environ.get("LEASEQ_DATABASE_URL", "postgres://postgres@127.0.0.1:5432/leaseq"),
        conn_max_age=60,
        conn_health_checks=True,
    )
}
# A silent partition must be an error within seconds, or renewals hang past the lease.
DATABASES["default"].setdefault("OPTIONS", {}).update(
    {
        "connect_timeout": 5,
        "tcp_user_timeout": 3000,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
    }
)
USE_TZ = True
TIME_ZONE = "UTC"
LANGUAGE_CODE = "en-us"

CELERY_BROKER_URL = os.environ.get("LEASEQ_BROKER_URL", "redis://127.0.0.1:6379/0")
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_SERIALIZER = "json"
CELERY_RESULT_SERIALIZER = "json"
CELERY_TASK_DEFAULT_QUEUE = "leaseq"
CELERY_TASK_IGNORE_RESULT = True
CELERY_TIMEZONE = "UTC"
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_DB_REUSE_MAX = 1_000
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_TRANSPORT_OPTIONS = {"socket_timeout": 10, "socket_connect_timeout": 5}
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"

LEASEQ = {
    "DATABASE": "default",
    "DEFAULT_QUEUE": "leaseq",
    "DEFAULT_POLICY": "default",
    "DEFAULT_ACCOUNT": None,
    "CONTROL_QUEUE": "leaseq-control",
    "PAYLOAD_BYTES_MAX": 65_536,
    "PAYLOAD_DEPTH_MAX": 32,
    "RESULT_BYTES_MAX": 1_048_576,
    "CLAIM_GRACE_SECONDS": 10,
    "SWEEP_SECONDS": float(os.environ.get("LEASEQ_SWEEP_SECONDS", "5")),
    "WORKER_GRACE_SECONDS": 30,
    "LOOKAHEAD_PER_SLOT": 1,
    "SLOTS": int(os.environ["LEASEQ_SLOTS"]) if "LEASEQ_SLOTS" in os.environ else None,
    "RETENTION_DAYS": 30,
    "PROVIDERS": {
        "private": {
            "ADAPTER": "openai_compatible",
            "BASE_URL": os.environ.get("LEASEQ_MODEL_URL", "http://127.0.0.1:8080/v1"),
            "MODEL": "smollm2-135m-instruct",
            "API_KEY": None,
        },
    },
}
