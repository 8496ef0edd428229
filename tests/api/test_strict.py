"""A misspelled field is never ignored: every endpoint with a body names unknown fields."""

from __future__ import annotations

from typing import Any

import pytest
from drf_spectacular.generators import SchemaGenerator

from dispatch.core.api.serializers import MAX_UNKNOWN_REPORTED
from dispatch.leads.models import Campaign
from dispatch.technicians.models import Technician
from tests.api.client import Api
from tests.api.test_tenants import OF_ONE
from tests.support import factories as make

pytestmark = pytest.mark.django_db

MODELS = {endpoint.path: endpoint.model for endpoint in OF_ONE}
UNKNOWN = "no_such_field"
# What only a superuser may change.
OF_SUPERUSERS = {"/api/v1/lead-engine/"}


def takers() -> list[tuple[str, str]]:
    """Return (method, path) of every operation with a JSON body."""
    paths = SchemaGenerator().get_schema(request=None, public=True)["paths"]
    return [
        (method.upper(), path)
        for path, operations in paths.items()
        for method, operation in operations.items()
        if "requestBody" in operation
    ]


def named(answer: Any) -> set[str | None]:
    return {error["field"] for error in answer.json().get("errors", [])} if answer.status_code >= 400 else set()


def test_every_unknown_field_is_rejected_by_name(ours: Any) -> None:
    operations, passed_over = takers(), []
    assert len(operations) > 50
    root = make.user("Root", is_superuser=True)
    for method, path in operations:
        model = MODELS.get(path.replace("{id}", "{pk}"))
        address = path.replace("{id}", str(ours.row(model).pk if model else 1)).replace("{kind}", "job.pending")
        api = (
            Api(user=root, organization=ours.organization.slug) if path in OF_SUPERUSERS else Api(user=ours.admin)
        )
        answer = api.send(method, address, {UNKNOWN: 1})
        if answer.status_code != 400 or UNKNOWN not in named(answer):
            passed_over.append((method, path, answer.status_code, sorted(map(str, named(answer)))))
    assert passed_over == []


def test_read_only_fields_may_be_sent_back(ours: Any) -> None:
    api = Api(user=ours.admin)
    made = api.post("skills/", {"code": "drains", "name": "Drains"}).json()
    assert api.patch(f"skills/{made['id']}/", {**made, "name": "All drains"}).json()["name"] == "All drains"


def test_only_some_of_many_unknown_fields_are_named(ours: Any) -> None:
    body = {f"f{n:03}": 1 for n in range(300)}
    told = named(Api(user=ours.admin).post("skills/", body))
    assert told == {f"f{n:03}" for n in range(MAX_UNKNOWN_REPORTED)}


@pytest.mark.parametrize(
    ("model", "path", "rows", "missing"),
    [
        (Technician, "technicians", {"shifts": [{}]}, {"weekday", "starts", "ends"}),
        (Technician, "technicians", {"shifts": [{"weekday": 1, "starts": "08:00"}]}, {"ends"}),
        (Campaign, "campaigns", {"retry_rules": [{"attempts": 3}]}, {"outcome"}),
        (Campaign, "campaigns", {"disposition_rules": [{"delay_h": 3}]}, {"disposition"}),
        (Campaign, "campaigns", {"branches": [{"say": "Hello."}]}, {"key"}),
    ],
)
def test_row_of_a_list_is_complete_in_a_patch(
    ours: Any, model: Any, path: str, rows: dict[str, Any], missing: set[str]
) -> None:
    """The rows replace all former ones."""
    (name,) = rows
    answer = Api(user=ours.admin).patch(f"{path}/{ours.row(model).pk}/", rows)
    assert answer.status_code == 400, answer.content
    assert {field.rpartition(".")[2] for field in named(answer) if field and field.startswith(name)} == missing
    assert {error["code"] for error in answer.json()["errors"]} == {"required"}
