"""Every filter by true or false takes the same values, and rejects what is neither instead of ignoring it."""

from __future__ import annotations

from typing import Any

import pytest
from drf_spectacular.generators import SchemaGenerator

from dispatch.technicians.models import Technician
from tests.api.client import Api

pytestmark = pytest.mark.django_db
DECLARED = {
    ("/api/v1/jobs/", "needs_attention"), ("/api/v1/message-groups/", "blocked"),
    ("/api/v1/schedules/", "failing"), ("/api/v1/consents/", "is_withdrawn"), ("/api/v1/notifications/", "unread"),
    ("/api/v1/technicians/", "on_duty"),
}  # fmt: skip


def boolean_filters() -> list[tuple[str, str]]:
    """Return (path, name) of every boolean in a query string."""
    paths = SchemaGenerator().get_schema(request=None, public=True)["paths"]
    return [
        (path, parameter["name"])
        for path, operations in paths.items()
        for parameter in operations.get("get", {}).get("parameters", ())
        if parameter["in"] == "query" and parameter["schema"].get("type") == "boolean" and "{" not in path
    ]


def test_every_boolean_filter_takes_the_same_values(ours: Any) -> None:
    filters, api = boolean_filters(), Api(user=ours.admin)
    assert set(filters) >= DECLARED
    for path, name in filters:
        for same in (("true", "True", "1"), ("false", "FALSE", "0"), ("", "")):
            found = [api.get(f"{path}?{name}={value}") for value in same]
            assert {answer.status_code for answer in found} == {200}, (path, name)
            assert len({str(answer.json()["results"]) for answer in found}) == 1, (path, name)
        for value in ("yes", "on", "maybe", "2", "null"):
            refused = api.get(f"{path}?{name}={value}")
            assert refused.status_code == 400, (path, name, value)
            (error,) = refused.json()["errors"]
            assert (error["field"], error["code"]) == (name, "invalid")
            assert error["detail"] == "Must be true or false."


def test_a_boolean_filter_filters(ours: Any) -> None:
    api = Api(user=ours.admin)
    Technician.objects.update(on_duty=True)
    everybody = api.get("technicians/").json()["results"]
    assert api.get("technicians/?on_duty=1").json()["results"] == everybody != []
    assert api.get("technicians/?on_duty=0").json()["results"] == []
    needing = {job["id"] for job in api.get("jobs/?needs_attention=1").json()["results"]}
    others = {job["id"] for job in api.get("jobs/?needs_attention=0").json()["results"]}
    assert needing | others == {job["id"] for job in api.get("jobs/").json()["results"]}
    assert not needing & others
