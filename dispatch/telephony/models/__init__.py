"""Models of telephony.

`calls`: outbound and inbound calls. `sms`: texts and opt-outs. `prices`: prices, spending caps and exchange rates.
`number_health`: when a number rests.
"""

from dispatch.telephony.models.calls import Call, CallEvent, InboundCall, holder_of
from dispatch.telephony.models.number_health import NumberHealthPolicy
from dispatch.telephony.models.prices import ExchangeRate, Priced, SpendCap
from dispatch.telephony.models.sms import OptOut, Text

__all__ = [
    "Call",
    "CallEvent",
    "ExchangeRate",
    "InboundCall",
    "NumberHealthPolicy",
    "OptOut",
    "Priced",
    "SpendCap",
    "Text",
    "holder_of",
]
