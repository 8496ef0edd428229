"""The schema is complete, and its pages work without internet."""

import copy
import re

import pytest
from django.core.management import call_command
from django.test import Client
from jsonschema import Draft202012Validator

from dispatch.openapi import examples
from tests.api.client import Api
from tests.support import factories as make

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def _schema(tmp_path_factory):
    import yaml

    path = tmp_path_factory.mktemp("schema") / "schema.yaml"
    call_command("spectacular", "--fail-on-warn", "--validate", "--file", str(path))
    return yaml.safe_load(path.read_text())


@pytest.fixture
def schema(_schema):
    """Return a copy that the test may change."""
    return copy.deepcopy(_schema)


def test_every_operation_is_described(schema):
    operations = [
        (path, method, operation)
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
        if method in ("get", "post", "put", "patch", "delete")
    ]
    assert len(operations) > 20
    for path, method, operation in operations:
        assert operation.get("description"), (path, method)
        problem = operation["responses"]["405"]["content"]
        assert list(problem) == ["application/problem+json"], (path, method)


def operations_with(schema, header):
    return {
        (method, path.removeprefix("/api/v1/"))
        for path, methods in schema["paths"].items()
        for method, operation in methods.items()
        if any(one["name"] == header for one in operation.get("parameters", []))
    }


def test_headers_that_operations_read_are_documented(schema):
    assert operations_with(schema, "Idempotency-Key") == {
        ("post", path)
        for path in (
            "submissions/", "jobs/{id}/notes/", "leads/", "leads/bulk/", "messages/", "event-types/publish/",
            "endpoints/{id}/rotate_secret/", "schedules/", "schedules/{id}/run-now/", "schedules/{id}/backfill/",
            "schedule-imports/",
        )
    }  # fmt: skip
    edits = {one for one in operations_with(schema, "If-Match") if one[0] in ("patch", "delete")}
    rows = (
        "pools", "numbers", "provider-accounts", "endpoints", "event-types", "technicians", "skills",
        "service-types", "policies", "notification-rules", "schedules",
    )  # fmt: skip
    assert {("patch", f"{row}/{{id}}/") for row in rows} <= edits


def test_progress_of_a_campaign_has_all_its_counts(schema):
    fields = schema["components"]["schemas"]["CampaignProgress"]["properties"]
    assert set(fields) == {"total", "statuses", "outcomes", "waiting"}


def bodies(schema):
    """Yield (operation, component, media) of every request body."""
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            for media in operation.get("requestBody", {}).get("content", {}).values():
                yield f"{method.upper()} {path}", examples.component_of(media), media


def test_every_body_has_an_example_that_fits_its_schema(schema):
    without = {component for _, component, media in bodies(schema) if not {"example", "examples"} & media.keys()}
    assert not without, "add an example to dispatch/openapi/examples.py"
    assert not examples.BODIES.keys() - {component for _, component, _ in bodies(schema)}, "of no body"
    for component in schema["components"]["schemas"].values():  # components that are only returned need no example
        given = component.get("properties", {})
        component["required"] = [n for n in component.get("required", []) if not given.get(n, {}).get("readOnly")]
    for operation, _, media in bodies(schema):
        if "example" in media:
            whole = {**media["schema"], "components": schema["components"]}
            problems = [error.message for error in Draft202012Validator(whole).iter_errors(media["example"])]
            assert not problems, (operation, problems)


def test_examples_name_only_existing_fields(schema):
    for operation, component, media in bodies(schema):
        known = schema["components"]["schemas"].get(media["schema"].get("$ref", "").rpartition("/")[2], {})
        if "example" in media and component not in ("BulkForm",):
            fields = known.get("properties", {})
            writable = {name for name, one in fields.items() if not one.get("readOnly")}
            assert media["example"].keys() <= writable, operation


def test_authentication_is_documented(schema):
    assert schema["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
    assert {"apiKey": []} in schema["paths"]["/api/v1/me/"]["get"]["security"]


def test_docs_page_loads_no_third_party_resources():
    page = Client().get("/api/v1/docs/").content.decode()
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert loaded
    assert all(address.startswith("/") for address in loaded), loaded
    assert Client().get("/api/v1/schema/").status_code == 200


def test_admin_loads_no_third_party_resources():
    organization = make.organization()
    client = Api(user=make.admin(organization)).client
    page = client.get("/admin/").content.decode()
    for address in re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="([^"]+)"', page):
        assert address.startswith(("/", "data:")), address
    assert "dispatch/alerts.js" in page
    assert 'id="notices"' in page


@pytest.mark.parametrize("document", ["schema/", "schema/webhooks/"])
@pytest.mark.parametrize(
    ("query", "accept", "status"),
    [("?format=foo", "*/*", 404), ("", "text/html", 406), ("?format=foo", "application/yaml", 404)],
)
def test_errors_of_the_documents_are_problems_in_json(document, query, accept, status):
    answer = Api().get(f"{document}{query}", Accept=accept)
    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")
    assert answer.json()["status"] == status
