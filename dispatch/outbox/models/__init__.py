"""Models of the outbox.

`endpoints`: endpoints, the links that open a receiver's portal, and the event catalog. `messages`: messages, their
groups, targets and attempts, and what limits the requests of a pool.
"""

from dispatch.outbox.models.endpoints import (
    Endpoint,
    EventType,
    EventTypeVersion,
    Mode,
    PortalLink,
    SigningSecret,
    check_url,
    default_permanent_codes,
    default_retry_schedule,
)
from dispatch.outbox.models.messages import (
    DEFAULT_GROUP,
    DEFAULT_SEQUENCE,
    ENDED,
    MAX_GROUP_LENGTH,
    Attempt,
    DirectRequest,
    Message,
    MessageGroup,
    PoolGate,
    QuarantinedPointer,
    Status,
    Target,
)

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
