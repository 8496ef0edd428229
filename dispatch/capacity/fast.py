"""Asking Redis, and knowing when not to believe it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import structlog

from dispatch.core import clock, generation
from dispatch.core.redis import REDIS_ERRORS, Script, key
from dispatch.core.sparing import Spared

log = structlog.get_logger(__name__)

spared = Spared(1.0)
_away_since: datetime | None = None  # since then things were decided that Redis does not know
_catch_up: Callable[[datetime], None] | None = None


def base_key() -> str:
    return key("capacity")


def when_back(catch_up: Callable[[datetime], None]) -> None:
    """Registers what tells Redis what happened since it went away."""
    global _catch_up
    _catch_up = catch_up


def ask(script: Script, *args: Any) -> Any | None:
    """The script's answer, or None when Redis is gone or does not know enough (the caller then asks Postgres)."""
    global _away_since
    if spared:
        return None
    began, away_since = clock.now(), _away_since
    try:
        if away_since is not None and _catch_up is not None:
            _catch_up(away_since)
            _away_since = None
        answer = run(script, args)
        if answer == generation.NOT_READY and generation.ensure():
            answer = run(script, args)
        return None if answer == generation.NOT_READY else answer
    except REDIS_ERRORS as error:
        log.warning("lines are proposed by Postgres, Redis is gone", script=script.name, error=str(error))
        spared.failed()
        if _away_since is None:
            _away_since = began
        return None


def run(script: Script, args: Sequence[Any]) -> Any:
    """The script's bare answer. Raises one of REDIS_ERRORS."""
    return script(keys=[generation.key_name(), base_key()], args=list(args))


def offset_ms() -> int:
    return clock.offset_ms()


def believe_again() -> None:
    """Forgets that Redis was gone (tests, which start and stop it)."""
    global _away_since
    spared.believe_again()
    _away_since = None
