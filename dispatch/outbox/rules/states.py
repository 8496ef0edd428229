"""The state machine of a message: what each of its events requires and leads to."""

from __future__ import annotations

from collections.abc import Mapping

_QUEUED, _PROCESSING = frozenset({"QUEUED"}), frozenset({"PROCESSING"})

# The verb of an event that ends a flight → the statuses before it, and those after it. A message that was canceled
# during its attempt stays CANCELLED, and the end of the attempt has no event.
FLIGHT_ENDS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    "completed": (_PROCESSING, frozenset({"COMPLETED"})),
    "failed": (_PROCESSING, frozenset({"ERROR"})),
    "retrying": (_PROCESSING, frozenset({"PENDING"})),
    "deferred": (_QUEUED | _PROCESSING, frozenset({"PENDING"})),  # by the receiver, or because it may not go now
    "recovered": (_QUEUED | _PROCESSING, frozenset({"PENDING"})),  # its pointer or its router was lost
    "unpublished": (_QUEUED, frozenset({"PENDING"})),
    "expired": (_QUEUED, frozenset({"EXPIRED"})),
}
# The same for the other events of Dispatch. The actions of users are `services.actions.Action`.
STEPS: Mapping[str, tuple[frozenset[str], str]] = {
    "queued": (frozenset({"PENDING"}), "QUEUED"),
    # A router that ends a message starts the next one of the group itself: it was never queued.
    "processing": (_QUEUED | {"PENDING"}, "PROCESSING"),
    "expired": (frozenset({"PENDING"}), "EXPIRED"),
}
