"""Define all settings.

Values that differ between installations come from environment variables, which docs/reference/configuration.md
lists. Users change policies in the admin; the values under "Policy defaults" below apply where they have not.
"""

import os
from pathlib import Path
from urllib.parse import urlsplit

from django.urls import reverse_lazy

from dispatch.console.admin_theme import UNFOLD as UNFOLD
from dispatch.core.db import session_limits
from dispatch.core.environment import Environment, postgres_address, redis_address, site_port
from dispatch.openapi.enums import ENUM_NAMES

BASE_DIR = Path(__file__).resolve().parent.parent
env = Environment()

# --- Environment --------------------------------------------------------------------------------------------
# The simulator, demo data and demo logins exist only under this flag.
DEVELOPMENT = env.bool("DISPATCH_DEVELOPMENT", default=False)
# Confirms that a development site may have a public address.
DEVELOPMENT_PUBLIC = env.bool("DISPATCH_DEVELOPMENT_PUBLIC", default=False)
DEBUG = env.bool("DEBUG", default=False)
DATA_DIR = Path(env.str("DISPATCH_DATA_DIR", default=str(BASE_DIR / ".data"))).resolve()
# The embedded servers that `manage.py` started for this process (dispatch.dev.embedded_servers).
_process, _, _embedded = os.environ.get("DISPATCH_EMBEDDED", "").partition(":")
_embedded = _embedded if _process == str(os.getpid()) else ""
EMBEDDED_POSTGRES = "postgres" in _embedded
EMBEDDED_REDIS = "redis" in _embedded

SECRET_KEY = env.str("SECRET_KEY", default="")
# Fernet keys, newest first; the older ones still decrypt. Generate one with `manage.py make_key`.
FIELD_ENCRYPTION_KEYS = env.list("FIELD_ENCRYPTION_KEYS", default=[])
if DEVELOPMENT:
    from dispatch.dev.embedded_servers import development_secret

    SECRET_KEY = SECRET_KEY or development_secret(DATA_DIR, "secret_key")
    FIELD_ENCRYPTION_KEYS = FIELD_ENCRYPTION_KEYS or [development_secret(DATA_DIR, "field_key")]

# The public URL for browsers and the phone provider: webhook URLs and their signatures are built from it.
PUBLIC_BASE_URL = env.str("PUBLIC_BASE_URL", default="http://127.0.0.1:8000").rstrip("/")
_public = urlsplit(PUBLIC_BASE_URL)
ALLOWED_HOSTS = env.list(
    "ALLOWED_HOSTS",
    default=[_public.hostname or "127.0.0.1"] + (["127.0.0.1", "localhost"] if DEVELOPMENT else []),
)
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[f"{_public.scheme}://{_public.netloc}"])
BEHIND_PROXY = env.bool("BEHIND_PROXY", default=False)
FORWARDED_ALLOW_IPS = env.str("FORWARDED_ALLOW_IPS", default="127.0.0.1")
WEB_HOST = env.str("WEB_HOST", default="127.0.0.1")
WEB_PORT = env.int("WEB_PORT", default=0) or site_port(PUBLIC_BASE_URL) or 8000

# --- Servers ------------------------------------------------------------------------------------------------
DATABASES = {
    "default": {
        **env.db_url_config(postgres_address(env.str("DATABASE_URL", default="")) or "postgresql:///dispatch"),
        "ENGINE": "dispatch.core.db.postgres",
        "CONN_MAX_AGE": env.int("DB_CONN_MAX_AGE", default=60),
        "CONN_HEALTH_CHECKS": True,
        "ATOMIC_REQUESTS": False,
    }
}
DATABASES["default"]["OPTIONS"] = {**session_limits.CLIENT, **DATABASES["default"].get("OPTIONS", {})}
# PostgreSQL limits of each session (core.db.session_limits), in seconds; 0: no limit. Migrations and other
# commands have none. Set DB_SESSION_LIMITS=false for a PgBouncer that rejects session parameters.
DB_SESSION_LIMITS = env.bool("DB_SESSION_LIMITS", default=True)
DB_LOCK_TIMEOUT_S = env.float("DB_LOCK_TIMEOUT_S", default=5.0)  # workers and dispatchers
DB_IDLE_TRANSACTION_TIMEOUT_S = env.float("DB_IDLE_TRANSACTION_TIMEOUT_S", default=30.0)
WEB_LOCK_TIMEOUT_S = env.float("WEB_LOCK_TIMEOUT_S", default=3.0)
WEB_STATEMENT_TIMEOUT_S = env.float("WEB_STATEMENT_TIMEOUT_S", default=60.0)
# Pool size of the web process (asgi.py sets it); 0: one persistent connection per thread.
DB_POOL_SIZE = env.int("DB_POOL_SIZE", default=0)
if DB_POOL_SIZE:
    DATABASES["default"]["CONN_MAX_AGE"] = 0
    DATABASES["default"]["OPTIONS"]["pool"] = {"min_size": 1, "max_size": DB_POOL_SIZE, "timeout": 5}
REDIS_URL = redis_address(env.str("REDIS_URL", default="")) or "redis://127.0.0.1:6379/0"
# Prefix of every Redis key, so that applications on a shared Redis and parallel test runs stay separate.
REDIS_PREFIX = env.str("REDIS_PREFIX", default="dispatch:")
REDIS_TIMEOUT_S = env.float("REDIS_TIMEOUT_S", default=2.0)

DISPATCH_QUEUE = "dispatch-queue"
DISPATCH_TIMEOUT_QUEUE = "dispatch-timeout-queue"
_rq = {
    "URL": REDIS_URL,
    "SERIALIZER": "rq.serializers.JSONSerializer",
    "DEFAULT_TIMEOUT": env.int("RQ_JOB_TIMEOUT_S", default=60),
    "DEFAULT_RESULT_TTL": env.int("RQ_RESULT_TTL_S", default=60),
    "REDIS_CLIENT_KWARGS": {"socket_connect_timeout": REDIS_TIMEOUT_S},
}
# Schedules: one queue per kind of work, one for results, and one for bulk creation (names in `schedules.kinds`).
SCHEDULE_STATUS_QUEUE = "dispatch-status-queue"
SCHEDULE_IMPORT_QUEUE = "dispatch-import-queue"
# Further kinds of work, name to module, as JSON: for example, a benchmark's no-op kind.
SCHEDULE_KIND_MODULES = env.json("SCHEDULE_KIND_MODULES", default={}) if DEVELOPMENT else {}
SCHEDULE_KIND_QUEUES = {
    kind: f"dispatch-{kind}-queue" for kind in ("submission", "lead", "message", "http", *SCHEDULE_KIND_MODULES)
}
_SCHEDULE_QUEUES = (*SCHEDULE_KIND_QUEUES.values(), SCHEDULE_STATUS_QUEUE, SCHEDULE_IMPORT_QUEUE)
RQ_QUEUES = {name: dict(_rq) for name in (DISPATCH_QUEUE, DISPATCH_TIMEOUT_QUEUE, *_SCHEDULE_QUEUES)}
RQ_FAILURE_TTL_S = env.int("RQ_FAILURE_TTL_S", default=7 * 86400)
# Minimum and maximum workers per queue for the autoscaler. The dispatch queue has at least two, so that a worker
# that waits for the provider does not stop the queue.
WORKERS = env.counts(
    "WORKERS",
    default={
        DISPATCH_QUEUE: 2,
        DISPATCH_TIMEOUT_QUEUE: 1,
        **dict.fromkeys(_SCHEDULE_QUEUES, 1),
        SCHEDULE_IMPORT_QUEUE: 0,
    },
)
WORKERS_MAX = env.counts(
    "WORKERS_MAX",
    default={
        DISPATCH_QUEUE: 6,
        DISPATCH_TIMEOUT_QUEUE: 2,
        **dict.fromkeys(_SCHEDULE_QUEUES, 4),
        SCHEDULE_IMPORT_QUEUE: 1,
    },
)
AUTOSCALE_JOBS_PER_WORKER = env.int("AUTOSCALE_JOBS_PER_WORKER", default=10)
AUTOSCALE_OLDEST_S = env.float("AUTOSCALE_OLDEST_S", default=2.0)
AUTOSCALE_CALM_S = env.float("AUTOSCALE_CALM_S", default=60.0)
AUTOSCALE_DB_CONNECTIONS = env.int("AUTOSCALE_DB_CONNECTIONS", default=0)
RQ = {"WORKER_CLASS": "dispatch.core.runtime.rq_worker.DispatchWorker"}
RQ_SHOW_ADMIN_LINK = False

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "dispatch.core.redis.channel_layer.GuardedChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": f"{REDIS_PREFIX}channels"},
    }
}

# --- Leads --------------------------------------------------------------------------------------------------
# Retries after a call that reached nobody, for campaigns without their own rule.
LEADS_RETRY_ATTEMPTS = env.int("LEADS_RETRY_ATTEMPTS", default=3)
LEADS_RETRY_DELAY_S = env.int("LEADS_RETRY_DELAY_S", default=3600)
LEADS_RETRY_FACTOR = env.float("LEADS_RETRY_FACTOR", default=2.0)
LEADS_RETRY_LONGEST_S = env.int("LEADS_RETRY_LONGEST_S", default=86_400)
LEADS_RETRY_JITTER = env.float("LEADS_RETRY_JITTER", default=0.1)
# The Redis queue, dialers and reconcilers.
LEADS_TICK_S = env.float("LEADS_TICK_S", default=0.2)  # maximum sleep of the promoter
# A lead is checked this long before its due time, so that its call is requested on time.
LEADS_AHEAD_S = env.float("LEADS_AHEAD_S", default=0.02)
LEADS_PROMOTE_BATCH = env.int("LEADS_PROMOTE_BATCH", default=2000)
LEADS_BATCH = env.int("LEADS_BATCH", default=200)  # leads per transaction
LEADS_CLAIMERS = env.int("LEADS_CLAIMERS", default=2)  # concurrent transactions per dialer
LEADS_IN_FLIGHT = env.int("LEADS_IN_FLIGHT", default=1000)  # claimed and unresolved leads per dialer
LEADS_ASK_THREADS = env.int("LEADS_ASK_THREADS", default=32)  # concurrent requests of a blocking provider client
LEADS_HEARTBEAT_S = env.float("LEADS_HEARTBEAT_S", default=5.0)
LEADS_WORKER_DEAD_S = env.float("LEADS_WORKER_DEAD_S", default=20.0)  # without a heartbeat
# A dialer may hold a claim this long without reporting an outcome; longer during a pre-check.
LEADS_CLAIM_LEASE_S = env.float("LEADS_CLAIM_LEASE_S", default=15.0)
LEADS_QUESTION_LEASE_S = env.float("LEADS_QUESTION_LEASE_S", default=45.0)
LEADS_WORKERS_INTERVAL_S = env.float("LEADS_WORKERS_INTERVAL_S", default=5.0)
LEADS_NEAR_S = env.float("LEADS_NEAR_S", default=600.0)  # leads due within this are near
LEADS_NEAR_INTERVAL_S = env.float("LEADS_NEAR_INTERVAL_S", default=60.0)
LEADS_SWEEP_INTERVAL_S = env.float("LEADS_SWEEP_INTERVAL_S", default=1.0)  # one small page per pass
LEADS_STALE_S = env.float("LEADS_STALE_S", default=300.0)  # a claim without a call
LEADS_UNTOLD_S = env.float("LEADS_UNTOLD_S", default=15.0)  # after the end of its call
LEADS_STALE_INTERVAL_S = env.float("LEADS_STALE_INTERVAL_S", default=30.0)
LEADS_LIFTED_INTERVAL_S = env.float("LEADS_LIFTED_INTERVAL_S", default=15.0)
# After an outage, overdue leads are spread over LEADS_JITTER_S, plus LEADS_JITTER_S per LEADS_JITTER_PER leads.
LEADS_JITTER_S = env.float("LEADS_JITTER_S", default=5.0)
LEADS_JITTER_PER = env.int("LEADS_JITTER_PER", default=5000)
LEADS_JITTER_MOST_S = env.float("LEADS_JITTER_MOST_S", default=300.0)
LEADS_REBUILD_MOST = env.int("LEADS_REBUILD_MOST", default=200_000)  # the sweep adds the rest

# --- Telephony ----------------------------------------------------------------------------------------------
# The URL of the simulator's REST API, which the accounts of the development organization use.
SIMULATOR_URL = env.str("SIMULATOR_URL", default="http://127.0.0.1:8010").rstrip("/") if DEVELOPMENT else ""
# Further providers, name to module, as JSON: for example, a benchmark's simulated one.
PROVIDER_MODULES = env.json("PROVIDER_MODULES", default={}) if DEVELOPMENT else {}
PROVIDER_TIMEOUT_S = env.float("PROVIDER_TIMEOUT_S", default=10.0)
# A request may be sent at most this long after its claim; after that its outcome can only be "unknown".
CALL_SEND_WINDOW_S = env.float("CALL_SEND_WINDOW_S", default=5.0)
CALL_TIME_LIMIT_S = env.int("CALL_TIME_LIMIT_S", default=300)
# Maximum automatic replies by text to one phone, so that two automatic responders do not reply to each other
# endlessly.
TEXT_REPLIES_PER_HOUR = env.int("TEXT_REPLIES_PER_HOUR", default=20)
UNKNOWN_LISTING_GAP_S = env.float("UNKNOWN_LISTING_GAP_S", default=60.0)
# The provider allows 15 s for all attempts: without `rt`, the first hanging attempt would use it up.
WEBHOOK_RETRIES = "#rc=3&rp=ct,rt,5xx&ct=2000&rt=4000"

# --- Outbox: the queue of pointers, and allowed targets ---------------------------------------------------------
OUTBOX_QUEUE_TYPE = env.str("OUTBOX_QUEUE_TYPE", default="redis")  # embedded, redis, sqs, activemq
OUTBOX_QUEUE_URL = env.str("OUTBOX_QUEUE_URL", default="")  # redis: empty is REDIS_URL
OUTBOX_EMBEDDED_FILE = env.str("OUTBOX_EMBEDDED_FILE", default=str(DATA_DIR / "outbox-queue.sqlite3"))
# A pointer that a consumer has not acknowledged is redelivered after this time, which must exceed an attempt's.
OUTBOX_VISIBILITY_S = env.float("OUTBOX_VISIBILITY_S", default=60.0)
# How long the Redis and embedded queues store a deduplication id (SQS: always five minutes).
OUTBOX_DEDUP_S = env.float("OUTBOX_DEDUP_S", default=300.0)
# Keys that sign the pointers' tokens, newest first; older ones are still accepted. Empty: derived from SECRET_KEY.
OUTBOX_TOKEN_KEYS = env.list("OUTBOX_TOKEN_KEYS", default=[])
# Non-public addresses may be called only inside these networks.
HTTP_ALLOWED_NETWORKS = env.list(
    "HTTP_ALLOWED_NETWORKS", default=["127.0.0.0/8", "::1/128"] if DEVELOPMENT else []
)
# A proxy through which every URL that an organization chooses, and the heartbeat, is called; empty: none.
OUTBOUND_PROXY_URL = env.str("OUTBOUND_PROXY_URL", default="")
# Allowed in addition to 80, 443 and ports from 1024 on, except ports of well-known services other than HTTP.
HTTP_ALLOWED_PORTS = env.list("HTTP_ALLOWED_PORTS", cast=int, default=[])

# --- Outbox: order, poller, router ------------------------------------------------------------------------------
OUTBOX_ENABLED = env.bool("OUTBOX_ENABLED", default=True)
OUTBOX_POLL_INTERVAL_S = env.float("OUTBOX_POLL_INTERVAL_S", default=5.0)
OUTBOX_BATCH_SIZE = env.int("OUTBOX_BATCH_SIZE", default=200)
OUTBOX_GROUPS_AT_ONCE = env.int("OUTBOX_GROUPS_AT_ONCE", default=10)  # concurrent publishes
OUTBOX_PROCESS_URL = env.str("OUTBOX_PROCESS_URL", default="")  # empty: under PUBLIC_BASE_URL
OUTBOX_DEFAULT_POOL = env.str("OUTBOX_DEFAULT_POOL", default="DISPATCH-POOL")
OUTBOX_REPUBLISH_AFTER_S = env.float("OUTBOX_REPUBLISH_AFTER_S", default=12.0)
OUTBOX_STALE_AFTER_S = env.float("OUTBOX_STALE_AFTER_S", default=900.0)
OUTBOX_STALE_INTERVAL_S = env.float("OUTBOX_STALE_INTERVAL_S", default=60.0)
OUTBOX_STALE_BATCH = env.int("OUTBOX_STALE_BATCH", default=100)
# An attempt in progress leases its message this long, renewed every third of it; after a crash it must expire.
OUTBOX_LEASE_S = env.float("OUTBOX_LEASE_S", default=60.0)
OUTBOX_LEASE_INTERVAL_S = env.float("OUTBOX_LEASE_INTERVAL_S", default=5.0)
OUTBOX_MAX_TIMEOUT_S = env.float("OUTBOX_MAX_TIMEOUT_S", default=30.0)
OUTBOX_ROUTER_CALLS = env.int("OUTBOX_ROUTER_CALLS", default=500)  # concurrent, per router process
OUTBOX_RETRY_SCHEDULE_S = env.list(
    "OUTBOX_RETRY_SCHEDULE_S", cast=int, default=[5, 30, 120, 600, 3600, 14400, 43200]
)
OUTBOX_PERMANENT_CODES = env.list(
    "OUTBOX_PERMANENT_CODES",
    cast=int,
    default=[400, 401, 403, 404, 405, 406, 410, 411, 413, 414, 415, 422, 431, 501],
)
OUTBOX_DEFER_S = env.float("OUTBOX_DEFER_S", default=30.0)  # a 429 without Retry-After
OUTBOX_LONGEST_DEFERRAL_S = env.float("OUTBOX_LONGEST_DEFERRAL_S", default=86_400.0)
OUTBOX_CIRCUIT_FAILURES = env.int("OUTBOX_CIRCUIT_FAILURES", default=5)
OUTBOX_CIRCUIT_OPEN_S = env.float("OUTBOX_CIRCUIT_OPEN_S", default=30.0)
OUTBOX_CIRCUIT_LONGEST_S = env.float("OUTBOX_CIRCUIT_LONGEST_S", default=600.0)
OUTBOX_DISABLE_AFTER_S = env.float("OUTBOX_DISABLE_AFTER_S", default=3 * 86_400.0)
OUTBOX_LAPSES = env.int("OUTBOX_LAPSES", default=10)  # crashes with one message before it becomes an ERROR

# --- Schedules ---------------------------------------------------------------------------------------------------
# The longest sleep of an executor. It wakes at the next trigger time, or when a run with an earlier one is
# created.
SCHEDULE_POLL_INTERVAL_S = env.float("SCHEDULE_POLL_INTERVAL_S", default=5.0)
SCHEDULE_BATCH_SIZE = env.int("SCHEDULE_BATCH_SIZE", default=1000)  # runs per transaction
SCHEDULE_CHUNK_SIZE = env.int("SCHEDULE_CHUNK_SIZE", default=100)  # runs per RQ job
# A worker leases its runs this long and renews the lease; after a crash it must expire.
SCHEDULE_LEASE_S = env.float("SCHEDULE_LEASE_S", default=90.0)
# A run that no worker has started is enqueued again after this time, if the queue no longer has its message.
SCHEDULE_STALE_AFTER_S = env.float("SCHEDULE_STALE_AFTER_S", default=30.0)
SCHEDULE_RECONCILE_INTERVAL_S = env.float("SCHEDULE_RECONCILE_INTERVAL_S", default=5.0)
SCHEDULE_MISSED_AFTER_S = env.int("SCHEDULE_MISSED_AFTER_S", default=300)  # a later run is missed
SCHEDULE_RETRY_SCHEDULE_S = env.list("SCHEDULE_RETRY_SCHEDULE_S", cast=int, default=[60, 300, 1800])
SCHEDULE_SHORTEST_INTERVAL_S = env.int("SCHEDULE_SHORTEST_INTERVAL_S", default=10)

# --- Policy defaults (a row in the admin takes precedence) ------------------------------------------------------
DISPATCH_POLICY_DEFAULTS = {
    "answer_timeout_s": env.int("OFFER_TIMEOUT_S", default=300),
    "ring_timeout_s": env.int("OFFER_RING_S", default=30),
    "answered_extension_s": env.int("OFFER_ANSWERED_EXTENSION_S", default=60),
    "radius_m": env.int("OFFER_RADIUS_M", default=50_000),
    "radius_growth": env.int("OFFER_RADIUS_GROWTH", default=0),
    "max_radius_m": env.int("OFFER_MAX_RADIUS_M", default=150_000),
    "max_candidates": env.int("OFFER_MAX_CANDIDATES", default=10),
    "rounds": env.int("OFFER_ROUNDS", default=1),
    "missed_call_grace_s": env.int("OFFER_MISSED_CALL_GRACE_S", default=0),
    "offer_by_text": env.bool("OFFER_BY_TEXT", default=False),
    "address_by_text": env.bool("OFFER_ADDRESS_BY_TEXT", default=True),
    "line_wait_s": env.int("OFFER_LINE_WAIT_S", default=300),
    "auto_pause_misses": env.int("OFFER_AUTO_PAUSE_MISSES", default=3),
    "pause_reminder_s": env.int("JOB_PAUSE_REMINDER_S", default=3600),
    "start_within_s": env.int("JOB_START_WITHIN_S", default=0),
    "technician_wait_s": env.int("OFFER_TECHNICIAN_WAIT_S", default=600),
    "weight_distance": 1.0,
    "weight_workload": 0.5,
    "weight_rest": 0.25,
    "weight_skills": 0.5,
    "advance_on_decline": True,
    "advance_on_busy": True,
    "advance_on_failed": True,
    "advance_on_no_answer": True,
    "advance_on_hangup": True,
}
# A new job is flagged as a probable duplicate of an open one with the same phone or address; 0: never.
DUPLICATE_HOURS = env.int("DUPLICATE_HOURS", default=24)
# Unacknowledged alerts: the interval at which they are shown again, and the escalation steps, each with its delay
# after the previous step. With a spacing, people are notified one after another.
ALERT_REPEAT_S = env.int("ALERT_REPEAT_S", default=60)
ALERT_AGAIN_AFTER_S = env.int("ALERT_AGAIN_AFTER_S", default=900)
ALERT_RETURN_AFTER_S = env.int("ALERT_RETURN_AFTER_S", default=900)  # an acknowledged alert that nothing follows
_on_duty_then_all_then_admins = [
    {"audience": "on_duty", "after_s": 120, "spacing_s": 45},
    {"audience": "dispatchers", "after_s": 60},
    {"audience": "admins", "after_s": 120},
]
ALERT_STEPS = env.json("ALERT_STEPS", default=_on_duty_then_all_then_admins)
IDEMPOTENCY_KEEP_DAYS = 7
# Signed links: lifetime in days, and how many invalid links an address may try.
TECHNICIAN_LINK_DAYS = env.int("TECHNICIAN_LINK_DAYS", default=30)
CUSTOMER_LINK_DAYS = env.int("CUSTOMER_LINK_DAYS", default=90)
LINK_GUESS_RATE = env.str("LINK_GUESS_RATE", default="30/min")
# Submissions of public forms per address.
PUBLIC_FORM_RATE = env.str("PUBLIC_FORM_RATE", default="10/hour")
# Retention in days, by the names in `core.privacy.retention`, as "calls=400;events=400"; 0: forever. Other kinds
# keep the default that their slice registered.
RETENTION_DAYS = env.dict("RETENTION_DAYS", cast={"value": int}, default={})
# Events are kept at least this long, regardless of the rules of the organization and the installation.
EVENT_LOG_MIN_DAYS = env.int("EVENT_LOG_MIN_DAYS", default=365)

# The geopy geocoder for addresses without a known ZIP code ("" = none), and its arguments as JSON.
GEOCODER = env.str("GEOCODER", default="")
GEOCODER_CONFIG = env.json("GEOCODER_CONFIG", default={})

# --- Loops (seconds) ------------------------------------------------------------------------------------------
LEADER_LEASE_S = env.float("LEADER_LEASE_S", default=5.0)
LEADER_RENEW_S = env.float("LEADER_RENEW_S", default=2.0)
AUDITOR_INTERVAL_S = env.float("AUDITOR_INTERVAL_S", default=5.0)
EVENT_READER_INTERVAL_S = env.float("EVENT_READER_INTERVAL_S", default=1.0)
# How often an open socket checks again whether its user may listen, and whether a push was lost.
SOCKET_RECHECK_S = env.float("SOCKET_RECHECK_S", default=15.0)
ALERT_LOOP_INTERVAL_S = env.float("ALERT_LOOP_INTERVAL_S", default=2.0)
CALL_PLACER_INTERVAL_S = env.float("CALL_PLACER_INTERVAL_S", default=0.5)
LINE_RECONCILER_INTERVAL_S = env.float("LINE_RECONCILER_INTERVAL_S", default=60.0)
CALL_RECONCILER_INTERVAL_S = env.float("CALL_RECONCILER_INTERVAL_S", default=15.0)
# An outside address that is requested while loops and alerts work, so that their silence is noticed; empty: none.
DISPATCH_HEARTBEAT_URL = env.str("DISPATCH_HEARTBEAT_URL", default="")
HEARTBEAT_INTERVAL_S = env.float("HEARTBEAT_INTERVAL_S", default=60.0)
RETENTION_INTERVAL_S = env.float("RETENTION_INTERVAL_S", default=600.0)

# --- Django ---------------------------------------------------------------------------------------------------
ROOT_URLCONF = "dispatch.urls"
ASGI_APPLICATION = "dispatch.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = reverse_lazy("admin:login")
LOGIN_REDIRECT_URL = reverse_lazy("admin:index")
LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True  # directly from the sources, without collectstatic
WHITENOISE_AUTOREFRESH = DEVELOPMENT
PHONENUMBER_DB_FORMAT = "E164"
PHONENUMBER_DEFAULT_FORMAT = "E164"
TEST_RUNNER = "django.test.runner.DiscoverRunner"

INSTALLED_APPS = [
    "unfold",
    "unfold.contrib.filters",
    "unfold.contrib.forms",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django.contrib.postgres",
    "channels",
    "django_rq",
    "rest_framework",
    "django_filters",
    "django_htmx",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "drf_standardized_errors",
    "phonenumber_field",
    "axes",
    "dispatch.core",
    "accounts",
    "dispatch.capacity",
    "dispatch.telephony",
    "dispatch.technicians",
    "dispatch.jobs",
    "dispatch.leads",
    "dispatch.outbox",
    "dispatch.schedules",
    "notifications",
    "dispatch.console",
    "dispatch.dev",
]
MIDDLEWARE = [
    "dispatch.core.web.health.HealthMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "dispatch.core.web.static_files.StaticFilesMiddleware",
    "dispatch.core.observability.logging.RequestIdMiddleware",
    "dispatch.core.web.health.RejectNulBytesMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "accounts.middleware.OrganizationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
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
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "django.contrib.auth.backends.ModelBackend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
AXES_FAILURE_LIMIT = env.int("LOGIN_FAILURE_LIMIT", default=10)
AXES_COOLOFF_TIME = env.float("LOGIN_COOLOFF_HOURS", default=0.25)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_HANDLER = "accounts.auth.sign_in.SignInHandler"
AXES_USERNAME_CALLABLE = "accounts.auth.sign_in.guarded_name"
AXES_LOCKOUT_TEMPLATE = "locked_out.html"
AXES_ENABLE_ADMIN = False
AXES_RESET_ON_SUCCESS = True
AXES_VERBOSE = False

_https = PUBLIC_BASE_URL.startswith("https://")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _https
SESSION_COOKIE_HTTPONLY = True
SECURE_SSL_REDIRECT = _https and not DEVELOPMENT
SECURE_HSTS_SECONDS = env.int("HSTS_SECONDS", default=31_536_000) if _https else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = bool(SECURE_HSTS_SECONDS)
X_FRAME_OPTIONS = "DENY"
# Maximum request body in bytes, and the few routes with a higher limit. Longer bodies are rejected unread.
DATA_UPLOAD_MAX_MEMORY_SIZE = 2_621_440
LARGE_BODY_ROUTES = [
    (r"/api/v1/schedule-imports/", 64 * 2**20),
    (r"/api/v1/leads/bulk/", 16 * 2**20),
    (r"/leads/upload/", 6 * 2**20),
]
if BEHIND_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

# --- API ------------------------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "accounts.auth.authentication.ApiKeyAuthentication",
        "accounts.auth.authentication.MemberSessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["accounts.auth.permissions.InOrganization"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["dispatch.core.api.parsers.PlainJSONParser"],
    "DEFAULT_FILTER_BACKENDS": ["accounts.api.filters.OwnedFilterBackend"],
    "DEFAULT_METADATA_CLASS": None,
    "DEFAULT_PAGINATION_CLASS": "dispatch.core.api.pagination.NewestFirst",
    "DEFAULT_SCHEMA_CLASS": "dispatch.core.api.openapi.ProblemSchema",
    "DEFAULT_VERSIONING_CLASS": None,
    "EXCEPTION_HANDLER": "drf_standardized_errors.handler.exception_handler",
    "DEFAULT_THROTTLE_CLASSES": ["accounts.auth.throttling.OrganizationThrottle"],
    "DEFAULT_THROTTLE_RATES": {
        "read": env.str("API_READ_RATE", default="1200/min"),
        "write": env.str("API_WRITE_RATE", default="600/min"),
    },
    "PAGE_SIZE": 50,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
API_BAD_KEY_RATE = env.str("API_BAD_KEY_RATE", default="20/min")
DRF_STANDARDIZED_ERRORS = {
    "EXCEPTION_FORMATTER_CLASS": "dispatch.core.api.problems.ProblemFormatter",
    "EXCEPTION_HANDLER_CLASS": "dispatch.core.api.problems.ProblemHandler",
    "ENABLE_IN_DEBUG_FOR_UNHANDLED_EXCEPTIONS": True,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Dispatch API",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": r"/api/v1",
    "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enums", "dispatch.openapi.examples.add"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "ENUM_NAME_OVERRIDES": ENUM_NAMES,
}

# --- E-mail -----------------------------------------------------------------------------------------------------
# The mail server, as smtp+tls://user:password@host:587. Empty: the console in development, else no e-mail.
EMAIL_URL = env.str("EMAIL_URL", default="")
EMAIL_IS_SET_UP = bool(EMAIL_URL) or DEVELOPMENT
if EMAIL_URL:
    vars().update(env.email_url_config(EMAIL_URL))
else:
    EMAIL_BACKEND = f"django.core.mail.backends.{'console' if DEVELOPMENT else 'dummy'}.EmailBackend"
EMAIL_TIMEOUT = 10
EMAIL_DOMAIN = _public.hostname or "localhost"
DEFAULT_FROM_EMAIL = SERVER_EMAIL = env.str("EMAIL_FROM", default=f"Dispatch <dispatch@{EMAIL_DOMAIN}>")

# --- Logs and admin ---------------------------------------------------------------------------------------------
LOG_LEVEL = env.one_of("LOG_LEVEL", ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), default="INFO")
# Bearer token that Prometheus must send to read /metrics; empty: no token is required.
METRICS_TOKEN = env.str("METRICS_TOKEN", default="")
# Where a standalone dispatcher, worker or autoscaler exports its counters; port 0: nowhere.
METRICS_HOST = env.str("METRICS_HOST", default="127.0.0.1")
METRICS_PORT = env.int("METRICS_PORT", default=0)
LOG_FORMAT = env.one_of("LOG_FORMAT", ("console", "json"), default="console" if DEVELOPMENT else "json")
LOGGING_CONFIG = "dispatch.core.observability.logging.configure"
LOGGING = {"level": LOG_LEVEL, "format": LOG_FORMAT}

os.environ.setdefault("PGAPPNAME", "dispatch")
