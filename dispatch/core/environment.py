"""Read environment variables. An invalid value is rejected with a sentence that names the variable.

Settings import this module, so it must not import models or apps.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured

_TRUE, _FALSE = {"1", "true", "yes", "y", "on", "ok", "t"}, {"0", "false", "no", "n", "off", "f", ""}


class Environment(environ.Env):
    """django-environ's Env with strict numbers and booleans: "60s" is not 60, and "ture" is not false.

    Values are literal: a dollar sign at the beginning, as in a generated secret, does not reference another
    variable.
    """

    def get_value(self, var: str, cast: Any = None, default: Any = environ.Env.NOTSET, **more: Any) -> Any:
        """Return the variable, parsed as `cast`. Raises ImproperlyConfigured."""
        cast = _flag if cast is bool else _number if cast is float else cast
        given = self.ENVIRON.get(f"{self.prefix}{var}", "")
        try:
            if given.startswith("$"):
                return self.parse_value(given, cast)
            return super().get_value(var, cast=cast, default=default, **more)
        except (ValueError, IndexError, KeyError) as error:
            # Without the value: it may be a secret.
            raise ImproperlyConfigured(
                f"The environment variable {var} can't be read ({_reason(error)}). See "
                "docs/reference/configuration.md."
            ) from error

    def counts(self, var: str, default: dict[str, int]) -> dict[str, int]:
        """Return the variable as integers by name (a=1;b=2). A single number applies to each name in `default`.

        Raises ImproperlyConfigured.
        """
        given = self.str(var, default="").strip()
        if given.isdecimal():
            return dict.fromkeys(default, int(given))
        counts: dict[str, int] = self.dict(var, cast={"value": int}, default=default)
        return counts

    def decimal(self, var: str, default: str) -> Decimal:
        """Return the variable as an exact number. Raises ImproperlyConfigured."""
        try:
            number = Decimal(self.str(var, default=default))
        except InvalidOperation:
            number = Decimal("nan")
        if not number.is_finite():
            raise ImproperlyConfigured(
                f"The environment variable {var} can't be read (not a number such as {default}). See "
                "docs/reference/configuration.md."
            )
        return number

    def one_of(self, var: str, choices: Iterable[str], default: str) -> str:
        """Return the variable, which must be one of `choices`. Raises ImproperlyConfigured."""
        value = self.str(var, default=default)
        if value not in choices:
            raise ImproperlyConfigured(f"{var} is {value!r}; it must be one of {', '.join(choices)}.")
        return value


def split_site_url(url: str) -> SplitResult:
    """Return the parts of PUBLIC_BASE_URL. Its port is valid. Raises ImproperlyConfigured."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ImproperlyConfigured(f"PUBLIC_BASE_URL is not a valid URL: {error}.") from error
    return parts


def made_folder(path: Path, *, mode: int = 0o700) -> Path:
    """Return the folder below DISPATCH_DATA_DIR, creating it if needed. Raises ImproperlyConfigured.

    Only this user may open it: it holds keys, data or figures.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if path.stat().st_uid == os.getuid():
            path.chmod(mode)
    except OSError as error:
        raise ImproperlyConfigured(
            f"{path} can't be created ({error.strerror}). Set DISPATCH_DATA_DIR to a writable folder."
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
