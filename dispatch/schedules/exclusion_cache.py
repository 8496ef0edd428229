"""Read exclusion calendars for the computation of times, and keep them in this process.

Each use asks for the versions of the calendars, which are small; contents are read when a version is new.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache

from dispatch.core.db.prepared import fetch_all
from dispatch.schedules.rules import recurrence
from dispatch.schedules.rules.exclusions import NO_EXCLUSIONS, Entry, Exclusions, resolve_exclusions

VERSIONS = "SELECT id, version FROM schedules_exclusioncalendar WHERE id = ANY(%(ids)s::bigint[])"
CONTENTS = "SELECT id, version, name, entries FROM schedules_exclusioncalendar WHERE id = ANY(%(ids)s::bigint[])"
# Calendars kept in this process; more are read again.
MAX_KEPT = 200

# (Calendar id, version) → (name, entries).
_contents: dict[tuple[int, int], tuple[str, Sequence[Entry]]] = {}


class ExclusionReader:
    """Return the exclusions of schedules, reading the versions of all their calendars at once."""

    def __init__(self, calendar_ids: Iterable[Sequence[int] | None]) -> None:
        wanted = sorted({pk for ids in calendar_ids for pk in ids or ()})
        # Calendar id → version.
        self._versions: dict[int, int] = dict(fetch_all(VERSIONS, {"ids": wanted})) if wanted else {}
        missing = [pk for pk, version in self._versions.items() if (pk, version) not in _contents]
        if not missing:
            return
        if len(_contents) + len(missing) > MAX_KEPT:
            reset()
            missing = list(self._versions)
        for pk, version, name, entries in fetch_all(CONTENTS, {"ids": missing}):
            _contents[pk, version] = (name, json.loads(entries))
            self._versions[pk] = version  # it may have changed between the two statements

    def exclusions_of(self, calendar_ids: Sequence[int] | None, zone: str) -> Exclusions:
        """Return the exclusions of a schedule in this zone. Calendars that were deleted exclude nothing."""
        keys = ((pk, self._versions[pk]) for pk in calendar_ids or () if pk in self._versions)
        known = tuple(key for key in keys if key in _contents)
        return _resolved(known, zone) if known else NO_EXCLUSIONS


def exclusions_of(calendar_ids: Sequence[int] | None, zone: str) -> Exclusions:
    """Return the exclusions of one schedule; see ExclusionReader."""
    return ExclusionReader([calendar_ids]).exclusions_of(calendar_ids, zone) if calendar_ids else NO_EXCLUSIONS


def reset() -> None:
    """Reset the cache of calendars."""
    _contents.clear()
    _resolved.cache_clear()


@lru_cache(maxsize=256)
def _resolved(known: tuple[tuple[int, int], ...], zone: str) -> Exclusions:
    contents = [_contents[key] for key in known]
    entries = [entry for _, entries in contents for entry in entries]
    return resolve_exclusions(entries, [name for name, _ in contents], lambda at: recurrence.localize(at, zone))
