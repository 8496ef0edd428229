"""Define the settings of the installation: its mode, keys, folders, addresses, email and logs."""

import os
from pathlib import Path

from django.http.request import split_domain_port

from dispatch.core.environment import Environment, split_site_url
from dispatch.core.server_addresses import email_settings

BASE_DIR = Path(__file__).resolve().parent.parent.parent
env = Environment()

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
# Other values of SECRET_KEY, former ones or the next: what they sign is accepted, too.
SECRET_KEY_FALLBACKS = env.list("SECRET_KEY_FALLBACKS", default=[])
# Fernet keys: the first one encrypts, and all decrypt. Generate one with `manage.py make_key`.
FIELD_ENCRYPTION_KEYS = env.list("FIELD_ENCRYPTION_KEYS", default=[])
if DEVELOPMENT:
    from dispatch.dev.embedded_servers import development_secret

    SECRET_KEY = SECRET_KEY or development_secret(DATA_DIR, "secret_key")
    FIELD_ENCRYPTION_KEYS = FIELD_ENCRYPTION_KEYS or [development_secret(DATA_DIR, "field_key")]

# The public URL for browsers and the phone provider: webhook URLs and their signatures are built from it.
PUBLIC_BASE_URL = env.str("PUBLIC_BASE_URL", default="http://127.0.0.1:8000").rstrip("/")
_public = split_site_url(PUBLIC_BASE_URL)
_public_host = split_domain_port(_public.netloc)[0] or "127.0.0.1"
ALLOWED_HOSTS = env.list(
    "ALLOWED_HOSTS", default=[_public_host] + (["127.0.0.1", "localhost"] if DEVELOPMENT else [])
)
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[f"{_public.scheme}://{_public.netloc}"])
BEHIND_PROXY = env.bool("BEHIND_PROXY", default=False)
FORWARDED_ALLOW_IPS = env.str("FORWARDED_ALLOW_IPS", default="127.0.0.1")
WEB_HOST = env.str("WEB_HOST", default="127.0.0.1")
WEB_PORT = env.int("WEB_PORT", default=0) or _public.port or 8000

# --- Email -----------------------------------------------------------------------------------------------------
# The mail server, as smtp+tls://user:password@host:587. Empty: the console in development, else no email.
EMAIL_URL = env.str("EMAIL_URL", default="")
EMAIL_IS_SET_UP = bool(EMAIL_URL) or DEVELOPMENT
if EMAIL_URL:
    vars().update(email_settings(EMAIL_URL))
else:
    EMAIL_BACKEND = f"django.core.mail.backends.{'console' if DEVELOPMENT else 'dummy'}.EmailBackend"
EMAIL_TIMEOUT = 10
EMAIL_DOMAIN = _public.hostname or "localhost"
DEFAULT_FROM_EMAIL = SERVER_EMAIL = env.str("EMAIL_FROM", default=f"Dispatch <dispatch@{EMAIL_DOMAIN}>")

# --- Map --------------------------------------------------------------------------------------------------------
# Raster tiles in the scheme of OpenStreetMap; empty: the board draws an outline with the names of towns.
MAP_TILES_URL = env.str(
    "MAP_TILES_URL", default="https://tile.openstreetmap.org/{z}/{x}/{y}.png" if DEVELOPMENT else ""
)
MAP_TILES_MAX_ZOOM = env.int("MAP_TILES_MAX_ZOOM", default=19)
MAP_TILES_ATTRIBUTION = env.str("MAP_TILES_ATTRIBUTION", default="© OpenStreetMap contributors")
MAP_TILES_ATTRIBUTION_URL = env.str("MAP_TILES_ATTRIBUTION_URL", default="https://www.openstreetmap.org/copyright")

# --- Logs and metrics -------------------------------------------------------------------------------------------
LOG_LEVEL = env.one_of("LOG_LEVEL", ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), default="INFO")
# Bearer token that Prometheus must send to read /metrics; empty: no token is required.
METRICS_TOKEN = env.str("METRICS_TOKEN", default="")
# Where a standalone dispatcher, worker or autoscaler exports its counters; port 0: nowhere.
METRICS_HOST = env.str("METRICS_HOST", default="127.0.0.1")
METRICS_PORT = env.int("METRICS_PORT", default=0)
LOG_FORMAT = env.one_of("LOG_FORMAT", ("console", "json"), default="console" if DEVELOPMENT else "json")
LOGGING_CONFIG = "dispatch.core.observability.logging.configure"
LOGGING = {"level": LOG_LEVEL, "format": LOG_FORMAT}
