"""The inputs of the schedule form for the payload of each kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accounts.models import Organization
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.jobs.models import ServiceType
from dispatch.leads.models import Campaign
from dispatch.outbox.models import Endpoint

Choices = Callable[[Organization], list[tuple[str, str]]]


@dataclass(frozen=True)
class Field:
    """One input. `type` is the type of an HTML input, or textarea, json or select."""

    name: str
    label: str
    type: str = "text"
    required: bool = False
    help: str = ""
    choices: Choices | None = None
    wide: bool = False


def _services(organization: Organization) -> list[tuple[str, str]]:
    rows = ServiceType.objects.of(organization).filter(is_active=True)
    return list(rows.values_list("code", "name"))


def _campaigns(organization: Organization) -> list[tuple[str, str]]:
    return list(Campaign.objects.of(organization).order_by("name").values_list("code", "name"))


def _endpoints(organization: Organization) -> list[tuple[str, str]]:
    return [(name, name) for name in Endpoint.objects.of(organization).values_list("name", flat=True)]


def _urls(organization: Organization) -> list[tuple[str, str]]:
    return [("", _("None (use the URL below)")), *_endpoints(organization)]


def _priorities(organization: Organization) -> list[tuple[str, str]]:
    return [("normal", _("Normal")), ("urgent", _("Urgent")), ("emergency", _("Emergency"))]


def _methods(organization: Organization) -> list[tuple[str, str]]:
    return [("POST", "POST"), ("GET", "GET")]


PAYLOADS: dict[str, tuple[Field, ...]] = {
    "submission": (
        Field("customer_name", mark("Customer"), required=True),
        Field("customer_phone", mark("Customer's phone"), "tel", required=True),
        Field("service_type", mark("Service"), "select", required=True, choices=_services),
        Field("priority", mark("Priority"), "select", choices=_priorities),
        Field("address", mark("Address"), required=True, wide=True),
        Field("notes", mark("Notes"), "textarea", wide=True),
    ),
    "lead": (
        Field("campaign", mark("Campaign"), "select", required=True, choices=_campaigns),
        Field("phone", mark("Phone"), "tel", required=True),
        Field(
            "customer",
            mark("On behalf of"),
            help=mark("Used for rate limits. Leave empty to use the campaign's customer."),
        ),
    ),
    "message": (
        Field("endpoint", mark("Endpoint"), "select", required=True, choices=_endpoints),
        Field("type", mark("Type"), required=True, help=mark("For example: report.due")),
        Field("group", mark("Group"), help=mark("Messages of one group are delivered in order.")),
        Field("payload", mark("Content (JSON)"), "json", required=True, wide=True),
    ),
    "http": (
        Field(
            "endpoint",
            mark("Endpoint"),
            "select",
            choices=_urls,
            help=mark("Uses the endpoint's headers and signature."),
        ),
        Field("url", mark("URL"), "url", wide=True),
        Field("method", mark("Method"), "select", choices=_methods),
        Field("body", mark("Body (JSON)"), "json", wide=True),
    ),
}
