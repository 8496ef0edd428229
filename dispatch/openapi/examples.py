"""Provide an example of every request body of the API, by its component's name in the schema.

A PATCH uses the example of its POST. A test checks that each example matches its schema and that none is missing.
"""

from __future__ import annotations

from typing import Any

_NOTE = {"note": "The customer called again."}
_DECISION = {"version": 7, **_NOTE}

BODIES: dict[str, dict[str, Any]] = {
    # --- jobs
    "SubmissionForm": {
        "customer_name": "Dana Whitfield",
        "customer_phone": "+16025550123",
        "service_type": "water-heater",
        "priority": "urgent",
        "address": "200 W Washington St, Phoenix, AZ 85003",
        "lat": 33.4484,
        "lng": -112.074,
        "notes": "Water under the kitchen sink.",
        "extra": {"account": "A-1042"},
    },
    "Assign": {"version": 7, "technician": 12, "note": "She knows the house."},
    "Cancel": {"version": 7, "reason": "The customer called: it works again."},
    "Decision": _DECISION,
    "DispatchAgain": {"version": 7, "address": "31 E 5th St, Tempe, AZ 85281", "lat": 33.4255, "lng": -111.94},
    "Extend": {"version": 7, "seconds": 60},
    "Correct": {"version": 7, "address": "210 W Washington St, Phoenix, AZ 85003"},
    "OnTheWay": {"version": 7, "eta_minutes": 20},
    "ReportLate": {"version": 7, "minutes": 20, "note": "Stuck on I-10."},
    "TechnicianTold": {"version": 7, "technician": 12, "note": "By radio."},
    "Compose": {"body": "The blue door in the back.", "technician": 12},
    "WriteNote": {"text": "The gate code is 1234. @Kim Lee has the key."},
    "ServiceType": {
        "code": "water-heater",
        "name": "Water heater repair",
        "spoken_name": "water heater repair",
        "required_skills": ["gas"],
    },
    "DispatchPolicy": {"service_type": "water-heater", "answer_timeout_s": 180, "ring_timeout_s": 25, "rounds": 2},
    # --- technicians
    "Skill": {"code": "gas", "name": "Gas fitting"},
    "Technician": {
        "name": "Ann Lee",
        "phone": "+16025550101",
        "lat": 33.4484,
        "lng": -112.074,
        "time_zone": "America/Phoenix",
        "skills": ["gas"],
        "shifts": [{"weekday": 0, "starts": "08:00", "ends": "17:00"}],
        "radius_m": 40000,
        "max_open_jobs": 3,
        "on_duty": True,
        "pin": "4826",
    },
    "Position": {"lat": 33.4255, "lng": -111.94},
    "Duty": {"on_duty": True},
    # --- telephony
    "Account": {
        "name": "Main account",
        "provider": "twilio",
        "account_sid": "AC0123456789abcdef0123456789abcdef",
        "auth_token": "the token of the account",
        "calls_per_second": 1,
    },
    "Pool": {"code": "phoenix", "name": "Phoenix", "kind": "calls", "concurrency": 10, "rate_per_minute": 60},
    "Number": {
        "phone": "+16025550100",
        "name": "Phoenix 1",
        "account": 3,
        "pool": "phoenix",
        "max_channels": 5,
        "reserved_for_alerts": 1,
        "reserved_for_offers": 2,
    },
    # --- leads
    "Campaign": {
        "code": "spring",
        "name": "Spring check",
        "pool": "phoenix",
        "window_from": "09:00",
        "window_until": "19:00",
        "weekdays": [0, 1, 2, 3, 4],
        "max_attempts": 4,
        "max_attempts_24h": 2,
        "script": "Hello, this is Copper State Plumbing. Your yearly check is due.",
    },
    "NewRecording": {"url": "https://www.example.com/welcome.mp3", "name": "Welcome"},
    "NewLead": {
        "campaign": "spring",
        "phone": "+16025550177",
        "due_at": "2027-03-01T16:00:00Z",
        "external_id": "crm-1042",
    },
    "LeadBulk": {"campaign": "spring", "leads": [{"phone": "+16025550177"}, {"phone": "+16025550178"}]},
    "DoNotCall": {"phone": "+16025550199", "note": "Asked by letter."},
    "Consent": {
        "phone": "+16025550134",
        "purpose": "marketing",
        "given_at": "2026-11-02T15:04:00Z",
        "source": "web form",
        "words": "Yes, you may call me about offers.",
        "proof": "https://forms.example.com/submissions/1042",
    },
    "ClosedDay": {"date": "2026-12-25", "name": "Christmas Day"},
    "CustomerRate": {"customer": "acme", "most": 100, "per_s": 3600},
    "Outcome": {"disposition": "wants_quote", "notes": "Asks for a second boiler."},
    "LeadDispatch": {"is_paused": True},
    "EngineSwitch": {"is_stopped": True},
    # --- outbox
    "EventType": {
        "name": "order.changed",
        "description": "An order was changed.",
        "is_enforced": True,
        "schema": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
        "example": {"id": 17},
    },
    "Payload": {"payload": {"id": 17}},
    "Publish": {"type": "order.changed", "payload": {"id": 17}, "group": "order:17"},
    "PortalLink": {"endpoint": "ERP", "label": "Acme", "event_types": ["order.*"], "link_s": 86400},
    "Endpoint": {
        "name": "ERP",
        "url": "https://erp.example.com/hooks/dispatch",
        "event_types": ["job.*"],
        "timeout_s": 10,
    },
    "Reason": {"reason": "Their maintenance, until noon."},
    "Rotation": {"overlap_s": 86400},
    "Send": {
        "endpoint": "ERP",
        "type": "invoice.due",
        "payload": {"invoice": 1042},
        "group": "customer:17",
        "idempotency_key": "invoice-1042",
    },
    "Note": _NOTE,
    "Many": {"action": "retry", "filter": {"status": "ERROR"}, **_NOTE},
    "Replay": {"since": "2026-01-05T00:00:00Z", "type": "invoice.due", "note": "Restored from a backup."},
    "Missed": {"since": "2026-01-05T00:00:00Z", "preview": True},
    "Condition": {"condition": "data.priority == 'emergency'"},
    # --- schedules
    "ScheduleForm": {
        "name": "Nightly report",
        "kind": "message",
        "payload": {"endpoint": "ERP", "type": "report.due", "payload": {"day": "yesterday"}},
        "cron": "30 2 * * *",
        "time_zone": "America/Phoenix",
    },
    "Timing": {"every": 2, "unit": "hour", "time_zone": "America/Phoenix", "starts_at": "2027-01-01T08:00:00Z"},
    "BulkForm": {
        "defaults": {"kind": "message", "time_zone": "America/Phoenix"},
        "schedules": [{"name": "Reminder 1", "trigger_at": "2027-01-04T09:00:00", "payload": {}}],
    },
    "ScheduleDecision": _DECISION,
    "Backfill": {"since": "2026-01-05T00:00:00Z", "until": "2026-01-05T12:00:00Z", "preview": True},
    "RunNow": {
        "note": "Last week's report was wrong",
        "payload": {"endpoint": "ERP", "type": "report.due", "payload": {"week": 48}},
    },
    "ExclusionCalendarForm": {"name": "Public holidays", "url": "https://example.com/holidays.ics"},
    "ConcurrencyLimitForm": {"key": "reports", "max_runs": 3},
    "MaxRuns": {"max_runs": 5},
    "ScheduleFeedForm": {"name": "Calendar of the office"},
    # --- notifications
    "Preference": {"email": True, "sms": True, "voice": False},
    "Route": {"kind": "endpoint.disabled", "to": "dispatchers", "level": "toast"},
    "Escalation": {
        "repeat_s": 60,
        "again_after_s": 900,
        "steps": [
            {"audience": "on_duty", "after_s": 120, "spacing_s": 45},
            {"audience": "dispatchers", "after_s": 60},
            {"audience": "admins", "after_s": 120},
        ],
    },
    # --- people
    "ApiKey": {"name": "Web form", "scopes": ["submissions:write"], "expires_at": "2027-12-31T00:00:00Z"},
    "NewMember": {
        "email": "maria@example.com",
        "name": "Maria Lopez",
        "phone": "+16025550111",
        "role": "dispatcher",
    },
    "Member": {"role": "admin", "alert_order": 10},
    "Organization": {"time_zone": "America/Phoenix", "distance_unit": "mi", "allowed_countries": ["US"]},
    "OwnDuty": {"on_duty": True},
    "SpendCap": {"amount": "50.00", "currency": "USD", "warn_percent": 80},
    "Choice": {"organization": "copper-state"},
}

# Response examples, where they show more than the schema.
ANSWERS: dict[str, dict[str, Any]] = {
    "Problem": {
        "type": "urn:dispatch:problem:validation_error",
        "title": "Not valid",
        "status": 400,
        "detail": "customer_phone: Enter a phone number.",
        "errors": [{"field": "customer_phone", "code": "invalid", "detail": "Enter a phone number."}],
    },
    "Accepted": {
        "id": 1042,
        "status": "received",
        "status_url": "https://dispatch.example.com/api/v1/submissions/1042/",
        "created_at": "2026-11-21T10:54:07Z",
    },
}


def add(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Add the examples to the generated schema (a drf-spectacular hook)."""
    for operations in result["paths"].values():
        for operation in operations.values():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                name = component_of(media)
                if "examples" not in media and name in BODIES:
                    media["example"] = BODIES[name]
    for name, example in ANSWERS.items():
        if name in result["components"]["schemas"]:
            result["components"]["schemas"][name]["example"] = example
    return result


def component_of(media: dict[str, Any]) -> str:
    """Return the component of a request body; for a PATCH, the component of its POST."""
    return str(media.get("schema", {}).get("$ref", "")).rpartition("/")[2].removeprefix("Patched")
