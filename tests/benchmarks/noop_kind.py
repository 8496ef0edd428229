"""A kind of scheduled work that does nothing, so that a benchmark measures only the overhead.

Available in processes whose SCHEDULE_KIND_MODULES names it, which only the development flag allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from accounts.models import Organization
from dispatch.schedules.kinds.base import Assignment, Kind, LeaseCheck, Outcome
from dispatch.schedules.rules.outcomes import SUCCEEDED

NAME, MODULE = "noop", __name__


class NoopKind(Kind):
    name = NAME
    label = "Nothing"
    scope = "manage"

    def check(self, organization: Organization, payload: dict[str, Any]) -> None:
        """Anything goes."""

    def summary(self, payload: Mapping[str, Any]) -> str:
        return "nothing"

    def work(self, given: Sequence[Assignment], keep: LeaseCheck) -> Iterator[tuple[Assignment, Outcome]]:
        for one in given:
            yield one, Outcome(SUCCEEDED)

    def find(self, given: Sequence[Assignment]) -> dict[int, dict[str, Any]]:
        return {}


KIND = NoopKind()
