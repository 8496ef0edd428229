"""Models of telephony. `calls`: outbound and inbound calls. `sms`: texts and opt-outs."""

from dispatch.telephony.models.calls import Call, CallEvent, InboundCall, holder_of
from dispatch.telephony.models.sms import OptOut, Text

__all__ = ["Call", "CallEvent", "InboundCall", "OptOut", "Text", "holder_of"]
