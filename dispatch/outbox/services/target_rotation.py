"""Take turns among the waiting targets of an organization that has too many to read all at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any


class TargetRotation:
    """Remember after which target of each organization to continue. Another process begins at the first ones.

    A statement reads `steps` waiting targets of each organization from the first on. If there are more, it also
    reads as many after those that the previous statement read, so that each target is read in its turn.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._after: dict[int, int] = {}

    @property
    def is_partial(self) -> bool:
        """Return whether some organization has waiting targets that the last statement may not have read."""
        return bool(self._after)

    def parameters(self, organizations: Collection[int] | None) -> dict[str, Any]:
        """Return the parameters of a statement for these organizations (None: all)."""
        turns = [
            (organization_id, after)
            for organization_id, after in list(self._after.items())
            if organizations is None or organization_id in organizations
        ]
        return {
            "steps": self.steps,
            "organizations": None if organizations is None else list(organizations),
            "turns": [organization_id for organization_id, _ in turns],
            "afters": [after for _, after in turns],
        }

    def advance(self, organizations: Collection[int] | None, last: Iterable[tuple[int, int]]) -> None:
        """Continue after what a statement for these organizations has read.

        `last`: (organization, target) at which it stopped before it had read all.
        """
        following: dict[int, int] = {}
        for organization_id, target_id in last:
            if target_id > self._after.get(organization_id, 0):
                following[organization_id] = min(target_id, following.get(organization_id, target_id))
        for organization_id in list(self._after) if organizations is None else organizations:
            self._after.pop(organization_id, None)
        self._after |= following
