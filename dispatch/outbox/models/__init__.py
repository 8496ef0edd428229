"""Models of the outbox.

`endpoints`: endpoints and the links that open a receiver's portal. `event_types`: the event catalog. `messages`:
messages, their groups, targets and attempts. `pool_slots`: the rate and the direct requests of a pool.
"""

from dispatch.outbox.models.endpoints import (
    Endpoint,
    Mode,
    PortalLink,
    SigningSecret,
    check_url,
    default_permanent_codes,
    default_retry_schedule,
)
from dispatch.outbox.models.event_types import EventType, EventTypeVersion
from dispatch.outbox.models.messages import (
    DEFAULT_GROUP,
    DEFAULT_SEQUENCE,
    ENDED,
    MAX_GROUP_LENGTH,
    Attempt,
    Message,
    MessageGroup,
    QuarantinedPointer,
    Status,
    Target,
)
from dispatch.outbox.models.pool_slots import DirectRequest, PoolGate

__all__ = [
    "DEFAULT_GROUP",
    "DEFAULT_SEQUENCE",
    "ENDED",
    "MAX_GROUP_LENGTH",
    "Attempt",
    "DirectRequest",
    "Endpoint",
    "EventType",
    "EventTypeVersion",
    "Message",
    "MessageGroup",
    "Mode",
    "PoolGate",
    "PortalLink",
    "QuarantinedPointer",
    "SigningSecret",
    "Status",
    "Target",
    "check_url",
    "default_permanent_codes",
    "default_retry_schedule",
]
