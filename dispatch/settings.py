"""The one settings module. Everything that differs between machines comes from the environment
(docs/configuration.md lists every variable); everything that people tune at work is a row in the admin, and
the values under "Policy defaults" below are what a row falls back to."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from django.urls import reverse_lazy

from dispatch.api_enums import ENUM_NAMES
from dispatch.console.admin_look import UNFOLD as UNFOLD
from dispatch.core import embedded
from dispatch.core.environment import Environment, postgres_address, redis_address, site_port

BASE_DIR = Path(__file__).resolve().parent.parent
env = Environment()

# --- What kind of place this is -----------------------------------------------------------------------------
# The simulator, demo data and demo logins exist only under this flag (DESIGN.md, "Development is explicit").
DEVELOPMENT = env.bool("DISPATCH_DEVELOPMENT", default=False)
DEBUG = env.bool("DEBUG", default=False)
DATA_DIR = Path(env.str("DISPATCH_DATA_DIR", default=str(BASE_DIR / ".data"))).resolve()
EMBEDDED_POSTGRES = not env.str("DATABASE_URL", default="")
EMBEDDED_REDIS = not env.str("REDIS_URL", default="")

SECRET_KEY = env.str("SECRET_KEY", default="")
# Fernet keys, newest first; the older ones still decrypt. Make one with `manage.py make_key`.
FIELD_ENCRYPTION_KEYS = env.list("FIELD_ENCRYPTION_KEYS", default=[])
if DEVELOPMENT:
    SECRET_KEY = SECRET_KEY or embedded.development_secret(DATA_DIR, "secret_key")
    FIELD_ENCRYPTION_KEYS = FIELD_ENCRYPTION_KEYS or [embedded.development_secret(DATA_DIR, "field_key")]

# Where browsers and the telephone provider reach us: webhook URLs and their signatures are built from it.
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
        **env.db_url_config(
            postgres_address(env.str("DATABASE_URL", default="")) or embedded.postgres_url(DATA_DIR)
        ),
        "ENGINE": "django.db.backends.postgresql",
        "CONN_MAX_AGE": env.int("DB_CONN_MAX_AGE", default=60),
        "CONN_HEALTH_CHECKS": True,
        "ATOMIC_REQUESTS": False,
    }
}
# The web process takes its connections from a pool of this size (asgi.py sets it); 0: one per thread, kept.
DB_POOL_SIZE = env.int("DB_POOL_SIZE", default=0)
if DB_POOL_SIZE:
    DATABASES["default"]["CONN_MAX_AGE"] = 0
    DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {
        "min_size": 1,
        "max_size": DB_POOL_SIZE,
        "timeout": 10,
    }
REDIS_URL = redis_address(env.str("REDIS_URL", default="")) or embedded.redis_url(DATA_DIR)
# Every key of ours starts with this, so that a shared Redis and parallel test runs stay apart.
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
# Schedules: one queue of each kind of work, what came of it, and bulk creations (`schedules.kinds` has the names).
SCHEDULE_STATUS_QUEUE = "dispatch-status-queue"
SCHEDULE_IMPORT_QUEUE = "dispatch-import-queue"
# Further kinds of work, name to module, as JSON: a benchmark's that does nothing.
SCHEDULE_KIND_MODULES = env.json("SCHEDULE_KIND_MODULES", default={}) if DEVELOPMENT else {}
SCHEDULE_KIND_QUEUES = {
    kind: f"dispatch-{kind}-queue" for kind in ("submission", "lead", "message", "http", *SCHEDULE_KIND_MODULES)
}
_SCHEDULE_QUEUES = (*SCHEDULE_KIND_QUEUES.values(), SCHEDULE_STATUS_QUEUE, SCHEDULE_IMPORT_QUEUE)
RQ_QUEUES = {name: dict(_rq) for name in (DISPATCH_QUEUE, DISPATCH_TIMEOUT_QUEUE, *_SCHEDULE_QUEUES)}
RQ_FAILURE_TTL_S = env.int("RQ_FAILURE_TTL_S", default=7 * 86400)
# How few and how many workers of each queue the autoscaler runs. Two, so that one that waits for the provider
# holds up nobody.
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
RQ = {"WORKER_CLASS": "dispatch.core.rq_worker.DispatchWorker"}
RQ_SHOW_ADMIN_LINK = False

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [REDIS_URL], "prefix": f"{REDIS_PREFIX}channels"},
    }
}

# --- Leads --------------------------------------------------------------------------------------------------
# What follows the end of a call that reached nobody, for a campaign without a rule of its own.
LEADS_RETRY_ATTEMPTS = env.int("LEADS_RETRY_ATTEMPTS", default=3)
LEADS_RETRY_DELAY_S = env.int("LEADS_RETRY_DELAY_S", default=3600)
LEADS_RETRY_FACTOR = env.float("LEADS_RETRY_FACTOR", default=2.0)
LEADS_RETRY_LONGEST_S = env.int("LEADS_RETRY_LONGEST_S", default=86_400)
LEADS_RETRY_JITTER = env.float("LEADS_RETRY_JITTER", default=0.1)
# Schedule, dialers, reconcilers.
LEADS_TICK_S = env.float("LEADS_TICK_S", default=0.2)  # the longest the promoter sleeps
# So long before its time a lead goes through the gates, so that it is asked for at its time.
LEADS_AHEAD_S = env.float("LEADS_AHEAD_S", default=0.02)
LEADS_PROMOTE_BATCH = env.int("LEADS_PROMOTE_BATCH", default=2000)
LEADS_BATCH = env.int("LEADS_BATCH", default=200)  # leads in one transaction
LEADS_CLAIMERS = env.int("LEADS_CLAIMERS", default=2)  # transactions at once, of one dialer
LEADS_IN_FLIGHT = env.int("LEADS_IN_FLIGHT", default=1000)  # taken and not yet settled, of one dialer
LEADS_ASK_THREADS = env.int("LEADS_ASK_THREADS", default=32)  # requests at once to a provider that blocks
LEADS_HEARTBEAT_S = env.float("LEADS_HEARTBEAT_S", default=5.0)
LEADS_WORKER_DEAD_S = env.float("LEADS_WORKER_DEAD_S", default=20.0)  # without a heartbeat
LEADS_WORKERS_INTERVAL_S = env.float("LEADS_WORKERS_INTERVAL_S", default=30.0)
LEADS_NEAR_S = env.float("LEADS_NEAR_S", default=600.0)  # what is due so soon is near
LEADS_NEAR_INTERVAL_S = env.float("LEADS_NEAR_INTERVAL_S", default=60.0)
LEADS_SWEEP_INTERVAL_S = env.float("LEADS_SWEEP_INTERVAL_S", default=1.0)  # one small page each
LEADS_STALE_S = env.float("LEADS_STALE_S", default=300.0)  # a claim without a call
LEADS_UNTOLD_S = env.float("LEADS_UNTOLD_S", default=15.0)  # after the end of its call
LEADS_STALE_INTERVAL_S = env.float("LEADS_STALE_INTERVAL_S", default=30.0)
LEADS_LIFTED_INTERVAL_S = env.float("LEADS_LIFTED_INTERVAL_S", default=15.0)
# After an outage what is overdue is spread over LEADS_JITTER_S, once more for every LEADS_JITTER_PER of it.
LEADS_JITTER_S = env.float("LEADS_JITTER_S", default=5.0)
LEADS_JITTER_PER = env.int("LEADS_JITTER_PER", default=5000)
LEADS_JITTER_MOST_S = env.float("LEADS_JITTER_MOST_S", default=300.0)
LEADS_REBUILD_MOST = env.int("LEADS_REBUILD_MOST", default=200_000)  # the sweep brings the rest

# --- Telephony ----------------------------------------------------------------------------------------------
# Where the simulator's REST API listens; accounts of the development organization point to it.
SIMULATOR_URL = env.str("SIMULATOR_URL", default="http://127.0.0.1:8010").rstrip("/") if DEVELOPMENT else ""
# Further providers, name to module, as JSON: a benchmark's that only pretends to call.
PROVIDER_MODULES = env.json("PROVIDER_MODULES", default={}) if DEVELOPMENT else {}
PROVIDER_TIMEOUT_S = env.float("PROVIDER_TIMEOUT_S", default=10.0)
# A request may leave at most this long after it was claimed; past it the outcome can only be "unknown".
CALL_SEND_WINDOW_S = env.float("CALL_SEND_WINDOW_S", default=5.0)
CALL_TIME_LIMIT_S = env.int("CALL_TIME_LIMIT_S", default=300)
# Automatic answers by text to one phone, so that two machines do not talk for ever.
TEXT_REPLIES_PER_HOUR = env.int("TEXT_REPLIES_PER_HOUR", default=20)
UNKNOWN_LISTING_GAP_S = env.float("UNKNOWN_LISTING_GAP_S", default=60.0)
WEBHOOK_RETRIES = "#rc=3&rp=ct,rt,5xx"

# --- Outbox: the queue of pointers, and what may be called -----------------------------------------------------
OUTBOX_QUEUE_TYPE = env.str("OUTBOX_QUEUE_TYPE", default="redis")  # embedded, redis, sqs, activemq
OUTBOX_QUEUE_URL = env.str("OUTBOX_QUEUE_URL", default="")  # redis: empty is REDIS_URL
OUTBOX_EMBEDDED_FILE = env.str("OUTBOX_EMBEDDED_FILE", default=str(DATA_DIR / "outbox-queue.sqlite3"))
# A pointer that a consumer took and did not settle goes to another after this long: longer than a call takes.
OUTBOX_VISIBILITY_S = env.float("OUTBOX_VISIBILITY_S", default=60.0)
# How long a queue of ours remembers a deduplication id (SQS: always five minutes).
OUTBOX_DEDUP_S = env.float("OUTBOX_DEDUP_S", default=300.0)
# Sign the pointers' tokens, newest first; the older ones are still accepted. Empty: derived from SECRET_KEY.
OUTBOX_TOKEN_KEYS = env.list("OUTBOX_TOKEN_KEYS", default=[])
# Addresses that are not public may be called only when they lie in one of these networks.
HTTP_ALLOWED_NETWORKS = env.list(
    "HTTP_ALLOWED_NETWORKS", default=["127.0.0.0/8", "::1/128"] if DEVELOPMENT else []
)
# Beside 80, 443 and those from 1024 on (less those of well-known services that do not speak HTTP).
HTTP_ALLOWED_PORTS = env.list("HTTP_ALLOWED_PORTS", cast=int, default=[])

# --- Outbox: order, poller, router ------------------------------------------------------------------------------
OUTBOX_ENABLED = env.bool("OUTBOX_ENABLED", default=True)
OUTBOX_POLL_INTERVAL_S = env.float("OUTBOX_POLL_INTERVAL_S", default=5.0)
OUTBOX_BATCH_SIZE = env.int("OUTBOX_BATCH_SIZE", default=200)
OUTBOX_GROUPS_AT_ONCE = env.int("OUTBOX_GROUPS_AT_ONCE", default=10)  # publishes at once
OUTBOX_PROCESS_URL = env.str("OUTBOX_PROCESS_URL", default="")  # empty: under PUBLIC_BASE_URL
OUTBOX_DEFAULT_POOL = env.str("OUTBOX_DEFAULT_POOL", default="DISPATCH-POOL")
OUTBOX_STALE_AFTER_S = env.float("OUTBOX_STALE_AFTER_S", default=900.0)
OUTBOX_STALE_INTERVAL_S = env.float("OUTBOX_STALE_INTERVAL_S", default=60.0)
OUTBOX_STALE_BATCH = env.int("OUTBOX_STALE_BATCH", default=100)
# A call in progress holds its message this long, renewed every third of it; after a crash all of it is waited out.
OUTBOX_LEASE_S = env.float("OUTBOX_LEASE_S", default=60.0)
OUTBOX_LEASE_INTERVAL_S = env.float("OUTBOX_LEASE_INTERVAL_S", default=5.0)
OUTBOX_MAX_TIMEOUT_S = env.float("OUTBOX_MAX_TIMEOUT_S", default=30.0)
OUTBOX_ROUTER_CALLS = env.int("OUTBOX_ROUTER_CALLS", default=500)  # at once, of one router process
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
OUTBOX_LAPSES = env.int("OUTBOX_LAPSES", default=10)  # crashes under one message, then it is an ERROR

# --- Schedules ---------------------------------------------------------------------------------------------------
# How long an executor sleeps at most; it wakes for the next trigger time, and is woken by an earlier one.
SCHEDULE_POLL_INTERVAL_S = env.float("SCHEDULE_POLL_INTERVAL_S", default=5.0)
SCHEDULE_BATCH_SIZE = env.int("SCHEDULE_BATCH_SIZE", default=1000)  # runs that one transaction takes
SCHEDULE_CHUNK_SIZE = env.int("SCHEDULE_CHUNK_SIZE", default=100)  # runs that one RQ job carries
# A worker holds its runs this long, renewed on the way; after a crash all of it is waited out.
SCHEDULE_LEASE_S = env.float("SCHEDULE_LEASE_S", default=90.0)
# A message that left no trace is sent again after this, if it is not in the queue any more.
SCHEDULE_STALE_AFTER_S = env.float("SCHEDULE_STALE_AFTER_S", default=30.0)
SCHEDULE_RECONCILE_INTERVAL_S = env.float("SCHEDULE_RECONCILE_INTERVAL_S", default=5.0)
SCHEDULE_MISSED_AFTER_S = env.int("SCHEDULE_MISSED_AFTER_S", default=300)  # later than this is missed
SCHEDULE_RETRY_SCHEDULE_S = env.list("SCHEDULE_RETRY_SCHEDULE_S", cast=int, default=[60, 300, 1800])
SCHEDULE_SHORTEST_INTERVAL_S = env.int("SCHEDULE_SHORTEST_INTERVAL_S", default=10)

# --- Policy defaults (a row edited by an admin wins) ----------------------------------------------------------
DISPATCH_POLICY_DEFAULTS = {
    "answer_timeout_s": env.int("OFFER_TIMEOUT_S", default=300),
    "ring_timeout_s": env.int("OFFER_RING_S", default=30),
    "answered_extension_s": env.int("OFFER_ANSWERED_EXTENSION_S", default=60),
    "radius_m": env.int("OFFER_RADIUS_M", default=50_000),
    "max_candidates": env.int("OFFER_MAX_CANDIDATES", default=10),
    "rounds": env.int("OFFER_ROUNDS", default=1),
    "missed_call_grace_s": env.int("OFFER_MISSED_CALL_GRACE_S", default=0),
    "offer_by_text": env.bool("OFFER_BY_TEXT", default=False),
    "address_by_text": env.bool("OFFER_ADDRESS_BY_TEXT", default=True),
    "line_wait_s": env.int("OFFER_LINE_WAIT_S", default=300),
    "auto_pause_misses": env.int("OFFER_AUTO_PAUSE_MISSES", default=3),
    "technician_wait_s": env.int("OFFER_TECHNICIAN_WAIT_S", default=600),
    "weight_distance": 1.0,
    "weight_workload": 0.5,
    "weight_rest": 0.25,
    "advance_on_decline": True,
    "advance_on_busy": True,
    "advance_on_failed": True,
    "advance_on_no_answer": True,
    "advance_on_hangup": True,
}
# Alerts that nobody acknowledges: shown again so often, and then sent out by these steps, each so long after the
# one before; a spacing has one person reached after another.
ALERT_REPEAT_S = env.int("ALERT_REPEAT_S", default=60)
ALERT_AGAIN_AFTER_S = env.int("ALERT_AGAIN_AFTER_S", default=900)
_on_duty_then_all_then_admins = [
    {"audience": "on_duty", "after_s": 120, "spacing_s": 45},
    {"audience": "dispatchers", "after_s": 60},
    {"audience": "admins", "after_s": 120},
]
ALERT_STEPS = env.json("ALERT_STEPS", default=_on_duty_then_all_then_admins)
IDEMPOTENCY_KEEP_DAYS = 7
# Signed links: how long they open their page, in days, and the guesses at one that an address may make.
TECHNICIAN_LINK_DAYS = env.int("TECHNICIAN_LINK_DAYS", default=30)
CUSTOMER_LINK_DAYS = env.int("CUSTOMER_LINK_DAYS", default=90)
LINK_GUESS_RATE = env.str("LINK_GUESS_RATE", default="30/min")
# Public forms sent from one address.
PUBLIC_FORM_RATE = env.str("PUBLIC_FORM_RATE", default="10/hour")
# How many days things are kept, by their names in `core.retention`, as "calls=400;events=400"; 0: forever. What is
# not named keeps the default with which its slice registered it.
RETENTION_DAYS = env.dict("RETENTION_DAYS", cast={"value": int}, default={})

# Which geopy geocoder answers when an address has no known ZIP code ("" = none), and its arguments as JSON.
GEOCODER = env.str("GEOCODER", default="")
GEOCODER_CONFIG = env.json("GEOCODER_CONFIG", default={})

# --- Loops (seconds) ------------------------------------------------------------------------------------------
LEADER_LEASE_S = env.float("LEADER_LEASE_S", default=5.0)
LEADER_RENEW_S = env.float("LEADER_RENEW_S", default=2.0)
AUDITOR_INTERVAL_S = env.float("AUDITOR_INTERVAL_S", default=5.0)
EVENT_READER_INTERVAL_S = env.float("EVENT_READER_INTERVAL_S", default=1.0)
# How often an open socket asks again whether its person may listen, and whether a push was lost.
SOCKET_RECHECK_S = env.float("SOCKET_RECHECK_S", default=15.0)
ALERT_LOOP_INTERVAL_S = env.float("ALERT_LOOP_INTERVAL_S", default=2.0)
CALL_PLACER_INTERVAL_S = env.float("CALL_PLACER_INTERVAL_S", default=0.5)
LINE_RECONCILER_INTERVAL_S = env.float("LINE_RECONCILER_INTERVAL_S", default=60.0)
CALL_RECONCILER_INTERVAL_S = env.float("CALL_RECONCILER_INTERVAL_S", default=15.0)
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
WHITENOISE_USE_FINDERS = True  # straight from the sources, nothing collected
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
]
MIDDLEWARE = [
    "dispatch.core.health.HealthMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "dispatch.core.static_files.StaticFilesMiddleware",
    "dispatch.core.logs.RequestIdMiddleware",
    "dispatch.core.storable_addresses.StorableAddressMiddleware",
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
AXES_HANDLER = "accounts.signin.SignInHandler"
AXES_USERNAME_CALLABLE = "accounts.signin.guarded_name"
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
if BEHIND_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

# --- API ------------------------------------------------------------------------------------------------------
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "accounts.authentication.ApiKeyAuthentication",
        "accounts.authentication.MemberSessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["accounts.permissions.InOrganization"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["dispatch.core.parsers.PlainJSONParser"],
    "DEFAULT_FILTER_BACKENDS": ["accounts.filters.OwnedFilterBackend"],
    "DEFAULT_METADATA_CLASS": None,
    "DEFAULT_PAGINATION_CLASS": "dispatch.core.pagination.NewestFirst",
    "DEFAULT_SCHEMA_CLASS": "dispatch.core.schema.ProblemSchema",
    "DEFAULT_VERSIONING_CLASS": None,
    "EXCEPTION_HANDLER": "drf_standardized_errors.handler.exception_handler",
    "DEFAULT_THROTTLE_CLASSES": ["accounts.throttling.OrganizationThrottle"],
    "DEFAULT_THROTTLE_RATES": {
        "read": env.str("API_READ_RATE", default="1200/min"),
        "write": env.str("API_WRITE_RATE", default="600/min"),
    },
    "PAGE_SIZE": 50,
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
API_BAD_KEY_RATE = env.str("API_BAD_KEY_RATE", default="20/min")
DRF_STANDARDIZED_ERRORS = {
    "EXCEPTION_FORMATTER_CLASS": "dispatch.core.problems.ProblemFormatter",
    "EXCEPTION_HANDLER_CLASS": "dispatch.core.problems.ProblemHandler",
    "ENABLE_IN_DEBUG_FOR_UNHANDLED_EXCEPTIONS": True,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Dispatch API",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": r"/api/v1",
    "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enums", "dispatch.api_examples.add"],
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "ENUM_NAME_OVERRIDES": ENUM_NAMES,
}

# --- E-mail -----------------------------------------------------------------------------------------------------
# The mail server, as smtp+tls://user:password@host:587; empty: written to the console in development, else none.
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
# What Prometheus must send as its bearer token to read /metrics; empty: no token is asked for.
METRICS_TOKEN = env.str("METRICS_TOKEN", default="")
# Where a dispatcher, worker or autoscaler that runs alone tells its own counters; port 0: nowhere.
METRICS_HOST = env.str("METRICS_HOST", default="127.0.0.1")
METRICS_PORT = env.int("METRICS_PORT", default=0)
LOG_FORMAT = env.one_of("LOG_FORMAT", ("console", "json"), default="console" if DEVELOPMENT else "json")
LOGGING_CONFIG = "dispatch.core.logs.configure"
LOGGING = {"level": LOG_LEVEL, "format": LOG_FORMAT}

os.environ.setdefault("PGAPPNAME", "dispatch")
