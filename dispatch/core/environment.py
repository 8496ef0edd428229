"""Reading the environment: whatever cannot be understood is refused in one sentence that names the variable.

Imported by settings: no models, no apps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured

_TRUE, _FALSE = {"1", "true", "yes", "y", "on", "ok", "t"}, {"0", "false", "no", "n", "off", "f", ""}
POSTGRES = ("postgres", "postgresql", "psql", "pgsql")
REDIS = ("redis", "rediss", "unix")


class Environment(environ.Env):
    """django-environ's, with strict numbers and booleans: "60s" is not 60, and "ture" is not false. A value is
    what it is: one that begins with a dollar sign (a generated secret may) does not name another variable."""

    def get_value(self, var: str, cast: Any = None, default: Any = environ.Env.NOTSET, **more: Any) -> Any:
        """The variable, read as `cast`. Raises ImproperlyConfigured."""
        cast = _flag if cast is bool else _number if cast is float else cast
        given = self.ENVIRON.get(f"{self.prefix}{var}", "")
        try:
            if given.startswith("$"):
                return self.parse_value(given, cast)
            return super().get_value(var, cast=cast, default=default, **more)
        except (ValueError, IndexError, KeyError) as error:
            # Without the value: it may be a secret.
            raise ImproperlyConfigured(
                f"The environment's {var} cannot be read ({_reason(error)}). See docs/configuration.md."
            ) from error

    def counts(self, var: str, default: dict[str, int]) -> dict[str, int]:
        """The variable as whole numbers by name (a=1;b=2); one number alone is that of each name in `default`.
        Raises ImproperlyConfigured."""
        given = self.str(var, default="").strip()
        if given.isdecimal():
            return dict.fromkeys(default, int(given))
        counts: dict[str, int] = self.dict(var, cast={"value": int}, default=default)
        return counts

    def one_of(self, var: str, choices: Iterable[str], default: str) -> str:
        """The variable, which must be one of `choices`. Raises ImproperlyConfigured."""
        value = self.str(var, default=default)
        if value not in choices:
            raise ImproperlyConfigured(f"{var} is {value!r}; it must be one of {', '.join(choices)}.")
        return value


def site_port(url: str) -> int | None:
    """The port that PUBLIC_BASE_URL names. Raises ImproperlyConfigured."""
    try:
        return urlsplit(url).port
    except ValueError as error:
        raise ImproperlyConfigured(f"PUBLIC_BASE_URL is not an address: {error}.") from error


def postgres_address(url: str) -> str:
    """`url`, when it is empty or one of a PostgreSQL database. Raises ImproperlyConfigured."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in POSTGRES and len(parts.path) > 1
    except ValueError:
        usable = False
    if url and not usable:
        raise ImproperlyConfigured("DATABASE_URL must look like postgresql://user:password@host:5432/name.")
    return url


def redis_address(url: str) -> str:
    """`url`, when it is empty or one of a Redis. Raises ImproperlyConfigured."""
    if url and url.partition("://")[0] not in REDIS:
        raise ImproperlyConfigured("REDIS_URL must look like redis://host:6379/0 (or rediss://, unix://).")
    return url


def made_folder(path: Path) -> Path:
    """The folder, below DISPATCH_DATA_DIR, which is made if it is not there. Raises ImproperlyConfigured."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ImproperlyConfigured(
            f"{path} cannot be made ({error.strerror}): set DISPATCH_DATA_DIR to a folder that can be written."
        ) from error
    return path


def _flag(value: Any) -> bool:
    text = str(value).strip().lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError("neither true nor false")


def _number(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError("not a number") from None


def _reason(error: Exception) -> str:
    if isinstance(error, IndexError | KeyError):
        return "pairs such as name=1;other=2 are expected"
    text = str(error)
    if text.startswith("invalid literal for int"):
        return "not a whole number"
    return "not JSON" if "line 1 column" in text else text
