"""The schema is whole, and its pages work without internet."""

import re

import pytest
from django.core.management import call_command
from django.test import Client

from tests import factories as make
from tests.api.client import Api

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    import yaml

    path = tmp_path_factory.mktemp("schema") / "schema.yaml"
    call_command("spectacular", "--fail-on-warn", "--validate", "--file", str(path))
    return yaml.safe_load(path.read_text())


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


def test_who_may_call_is_named(schema):
    assert schema["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
    assert {"apiKey": []} in schema["paths"]["/api/v1/me/"]["get"]["security"]


def test_the_docs_page_loads_nothing_from_elsewhere():
    page = Client().get("/api/v1/docs/").content.decode()
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert loaded
    assert all(address.startswith("/") for address in loaded), loaded
    assert Client().get("/api/v1/schema/").status_code == 200


def test_the_admin_loads_nothing_from_elsewhere():
    organization = make.organization()
    client = Api(user=make.admin(organization)).client
    page = client.get("/admin/").content.decode()
    for address in re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="([^"]+)"', page):
        assert address.startswith(("/", "data:")), address
    assert "dispatch/notices.js" in page
    assert 'id="notices"' in page
