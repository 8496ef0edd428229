"""Define all settings.

Values that differ between installations come from environment variables, which docs/reference/configuration.md
lists. `environment`: the installation. `slices`: defaults and limits of the slices, and policies. Here: the
servers, Django and its packages.
"""

import os

from django.urls import reverse_lazy
from xstatic.pkg import leaflet, leaflet_markercluster

from dispatch.console.admin_theme import UNFOLD as UNFOLD
from dispatch.core.db import session_limits
from dispatch.core.server_addresses import postgres_settings, redis_address, rq_connection
from dispatch.openapi.enums import ENUM_NAMES
from dispatch.settings.environment import *  # noqa: F403
from dispatch.settings.environment import BASE_DIR, BEHIND_PROXY, DEVELOPMENT, PUBLIC_BASE_URL, env
from dispatch.settings.slices import *  # noqa: F403

# --- Servers ------------------------------------------------------------------------------------------------
os.environ.setdefault("PGAPPNAME", "dispatch")
DATABASES = {
    "default": {
        **postgres_settings(env.str("DATABASE_URL", default="") or "postgresql:///dispatch"),
        "ENGINE": "dispatch.core.db.postgres",
        "CONN_MAX_AGE": env.int("DB_CONN_MAX_AGE", default=600),
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
REPORT_STATEMENT_TIMEOUT_S = env.float("REPORT_STATEMENT_TIMEOUT_S", default=20.0)
# Connections by kind of process (core.runtime.connection_budget). Pool size of the web process (asgi.py sets it),
# without the connection for groups of webhooks; 0: one persistent connection per thread. Other processes keep a
# connection per thread: a step that waits for a pool could lose its leadership.
DB_POOL_SIZE = env.int("DB_POOL_SIZE", default=0)
# Threads for requests to the phone provider: of a worker in all, of a dispatcher for each kind of request; 0: as
# many as telephony.request_threads says.
WORKER_REQUEST_THREADS = env.int("WORKER_REQUEST_THREADS", default=8)
DISPATCHER_REQUEST_THREADS = env.int("DISPATCHER_REQUEST_THREADS", default=0)
if DB_POOL_SIZE and session_limits.is_web():
    DATABASES["default"]["CONN_MAX_AGE"] = 0
    DATABASES["default"]["OPTIONS"]["pool"] = {"min_size": 1, "max_size": DB_POOL_SIZE + 1, "timeout": 5}
REDIS_URL = redis_address(env.str("REDIS_URL", default="")) or "redis://127.0.0.1:6379/0"
# Separate servers by purpose; empty: REDIS_URL. The outbox has OUTBOX_QUEUE_URL.
REDIS_QUEUES_URL = redis_address(env.str("REDIS_QUEUES_URL", default=""), "REDIS_QUEUES_URL")
REDIS_LEADS_URL = redis_address(env.str("REDIS_LEADS_URL", default=""), "REDIS_LEADS_URL")
REDIS_CHANNELS_URL = redis_address(env.str("REDIS_CHANNELS_URL", default=""), "REDIS_CHANNELS_URL")
# Prefix of every Redis key, so that applications on a shared Redis and parallel test runs stay separate.
REDIS_PREFIX = env.str("REDIS_PREFIX", default="dispatch:")
REDIS_TIMEOUT_S = env.float("REDIS_TIMEOUT_S", default=2.0)

DISPATCH_QUEUE = "dispatch-queue"
DISPATCH_TIMEOUT_QUEUE = "dispatch-timeout-queue"
_rq = {
    **rq_connection(REDIS_QUEUES_URL or REDIS_URL),  # for the dashboard
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
# Workers that are still busy this long after a stop are killed. The platform must allow more (here: 90 s).
# `make up` stops everything within 12 s.
AUTOSCALE_STOP_GRACE_S = env.float("AUTOSCALE_STOP_GRACE_S", default=10.0 if DEVELOPMENT else 75.0)
AUTOSCALE_DB_CONNECTIONS = env.int("AUTOSCALE_DB_CONNECTIONS", default=0)
RQ = {"WORKER_CLASS": "dispatch.core.runtime.rq_worker.DispatchWorker"}
RQ_SHOW_ADMIN_LINK = False

CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "dispatch.core.redis.channel_layer.GuardedChannelLayer",
        "CONFIG": {"hosts": [REDIS_CHANNELS_URL or REDIS_URL], "prefix": f"{REDIS_PREFIX}channels"},
    }
}

# --- Django ---------------------------------------------------------------------------------------------------
ROOT_URLCONF = "dispatch.urls"
ASGI_APPLICATION = "dispatch.asgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = reverse_lazy("admin:login")
LOGIN_REDIRECT_URL = reverse_lazy("admin:index")
LANGUAGE_CODE = "en-us"
LANGUAGES = [("en", "English"), ("es", "Spanish")]
LOCALE_PATHS = [BASE_DIR / "dispatch" / "locale"]
FORMAT_MODULE_PATH = ["dispatch.core.formats"]
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
# Browser libraries that come in Python packages.
STATICFILES_DIRS = [
    BASE_DIR / "static",
    ("leaflet", leaflet.BASE_DIR),
    ("leaflet-markercluster", leaflet_markercluster.BASE_DIR),
]
WHITENOISE_USE_FINDERS = True  # directly from the sources, without collectstatic
WHITENOISE_AUTOREFRESH = DEVELOPMENT
PHONENUMBER_DB_FORMAT = "E164"
PHONENUMBER_DEFAULT_FORMAT = "E164"
TEST_RUNNER = "django.test.runner.DiscoverRunner"

INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",
    "unfold.contrib.filters",
    "unfold.contrib.forms",
    "dispatch.console.apps.AdminConfig",
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
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "allauth.mfa",
    "allauth.usersessions",
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
    "dispatch.core.web.content_policy.ContentPolicyMiddleware",
    "dispatch.core.web.static_files.StaticFilesMiddleware",
    "dispatch.core.web.compression.CompressionMiddleware",
    "dispatch.core.observability.logging.RequestIdMiddleware",
    "dispatch.core.web.health.RejectNulBytesMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django.middleware.common.CommonMiddleware",
    "dispatch.jobs.api.intake.SubmissionIntakeMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "accounts.middleware.SessionReachMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "accounts.middleware.SecondFactorMiddleware",
    "accounts.middleware.OrganizationMiddleware",
    "accounts.languages.LanguageMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "axes.middleware.AxesMiddleware",
]
# Of these, the ones that webhooks of the phone provider pass (core.web.bare_handler).
WEBHOOK_MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "dispatch.core.observability.logging.RequestIdMiddleware",
    "dispatch.core.web.health.RejectNulBytesMiddleware",
    "django.middleware.common.CommonMiddleware",
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
    {"NAME": name}
    for name in (
        "django.contrib.auth.password_validation.UserAttributeSimilarityValidator",
        "accounts.auth.passwords.LengthValidator",
        "django.contrib.auth.password_validation.CommonPasswordValidator",
        "django.contrib.auth.password_validation.NumericPasswordValidator",
    )
]
AXES_FAILURE_LIMIT = env.int("LOGIN_FAILURE_LIMIT", default=10)
AXES_COOLOFF_TIME = env.float("LOGIN_COOLOFF_HOURS", default=0.25)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_HANDLER = "accounts.auth.sign_in.SignInHandler"
AXES_CLIENT_IP_CALLABLE = "dispatch.core.web.client_addresses.limited_address"
AXES_USERNAME_CALLABLE = "accounts.auth.sign_in.guarded_name"
AXES_LOCKOUT_TEMPLATE = "locked_out.html"
AXES_ENABLE_ADMIN = False
AXES_RESET_ON_SUCCESS = True
AXES_VERBOSE = False

# The second factor: TOTP, passkeys and recovery codes (django-allauth). Superusers need one outside development.
SECOND_FACTOR_FOR_SUPERUSERS = env.bool("SECOND_FACTOR_FOR_SUPERUSERS", default=not DEVELOPMENT)
ACCOUNT_ADAPTER = "accounts.auth.adapters.AccountAdapter"
ACCOUNT_USER_MODEL_USERNAME_FIELD = None
ACCOUNT_LOGIN_METHODS = {"email"}
ACCOUNT_SIGNUP_FIELDS = ["email*"]  # for its checks only; nobody signs up
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_LOGIN_TIMEOUT = 600  # seconds between the password and the second factor
# Wrong codes per person, and per address. Wrong passwords are counted by axes.
ACCOUNT_RATE_LIMITS = {"login_failed": "60/m/ip,5/15m/key"}
MFA_ADAPTER = "accounts.auth.adapters.MFAAdapter"
MFA_FORMS = {
    name: f"accounts.auth.second_factor_forms.{form}"
    for name, form in {
        "authenticate": "CodeForm",
        "reauthenticate": "ConfirmCodeForm",
        "activate_totp": "ActivateForm",
        "add_webauthn": "AddPasskeyForm",
        "authenticate_webauthn": "PasskeyForm",
        "reauthenticate_webauthn": "ConfirmPasskeyForm",
        "login_webauthn": "PasskeySignInForm",
    }.items()
}
MFA_SUPPORTED_TYPES = ["totp", "recovery_codes", "webauthn"]
MFA_PASSKEY_LOGIN_ENABLED = True
MFA_RATE_LIMITS = {"webauthn_login": "60/m/ip"}
MFA_ALLOW_UNVERIFIED_EMAIL = True  # addresses are verified by invitations, not by django-allauth
MFA_TOTP_ISSUER = "Dispatch"
MFA_TOTP_PERIOD = 30
MFA_TOTP_TOLERANCE = 1
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = DEVELOPMENT
# Single sign-on: each organization's provider is a row (accounts.sso).
SOCIALACCOUNT_ADAPTER = "accounts.sso.provider.SocialAccountAdapter"
SOCIALACCOUNT_STORE_TOKENS = False
# Sign-ins that one address, and all people of one organization, may begin.
SSO_RATE = env.str("SSO_RATE", default="30/min")
SSO_ORGANIZATION_RATE = env.str("SSO_ORGANIZATION_RATE", default="300/min")
CACHES = {"default": {"BACKEND": "dispatch.core.redis.cache.RedisCache"}}

_https = PUBLIC_BASE_URL.startswith("https://")
# A session ends after this long without a request or an open page, and this long after the sign-in.
SESSION_IDLE_HOURS = env.float("SESSION_IDLE_HOURS", default=12.0)
SESSION_MAX_HOURS = env.float("SESSION_MAX_HOURS", default=168.0)
SESSION_ENGINE = "accounts.auth.session_store"
SESSION_COOKIE_AGE = int(SESSION_MAX_HOURS * 3600)  # of the cookie; the store decides
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _https
SESSION_COOKIE_HTTPONLY = True
# Days until an API key expires whose creator names no time; 0: never.
API_KEY_DAYS = env.int("API_KEY_DAYS", default=365)
SECURE_SSL_REDIRECT = _https and not DEVELOPMENT
SECURE_HSTS_SECONDS = env.int("HSTS_SECONDS", default=31_536_000) if _https else 0
# Both bind every other site under this host name, so only the operator turns them on.
SECURE_HSTS_INCLUDE_SUBDOMAINS = env.bool("HSTS_INCLUDE_SUBDOMAINS", default=False)
SECURE_HSTS_PRELOAD = env.bool("HSTS_PRELOAD", default=False)
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]  # they ask for both
X_FRAME_OPTIONS = "DENY"
# Maximum request body in bytes, and the few routes with a higher limit. Longer bodies are rejected unread.
DATA_UPLOAD_MAX_MEMORY_SIZE = 2_621_440
LARGE_BODY_ROUTES = [
    (r"/api/v1/schedule-imports/", 64 * 2**20),
    (r"/api/v1/leads/bulk/", 16 * 2**20),
    (r"/leads/upload/", 6 * 2**20),
    (r"/api/v1/recordings/", 6 * 2**20),
    (r"/admin/leads/campaign/(add|\d+/change)/", 24 * 2**20),  # several recordings
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
