"""Run schemathesis on our OpenAPI schema: no server error, and no undocumented answer.

The suite sends a few requests of each operation, always the same ones; `make soak` sends hundreds, at random. Each
request runs in a transaction that is rolled back, so that rows deleted by one exist for the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from django.conf import settings as django_settings
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.api.test_tenants import OF_ONE
from tests.support.tenants import Tenant

pytestmark = pytest.mark.django_db

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES, SOAK_EXAMPLES = 6, 300
SOAK_PARTS = 12
CSRF = "c" * 32

# URL of one row → its model, so that most requests find one.
MODELS = {endpoint.path: endpoint.model for endpoint in OF_ONE}


@pytest.fixture(scope="module")
def schema(django_db_setup: None, django_db_blocker: Any) -> Iterator[Any]:
    """Load the schema from the application, in this thread and on this connection.

    A request must not close the connection.
    """
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    with django_db_blocker.unblock():
        made = schemathesis.openapi.from_wsgi("/api/v1/schema/?format=json", WSGIHandler())
    yield made
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.fixture(autouse=True)
def _no_throttle(settings: Any) -> None:
    rates = dict.fromkeys(settings.REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"], "1000000/s")
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "DEFAULT_THROTTLE_RATES": rates}
    settings.API_BAD_KEY_RATE = "1000000/s"


def operations(schema: Any) -> Iterator[Any]:
    for found in schema.get_all_operations():
        operation = found.ok()
        if not operation.path.endswith(("/schema/", "/docs/")):
            yield operation


def walk(schema: Any, ours: Tenant, examples: int, *, at_random: bool, part: slice = slice(None)) -> int:
    """Send `examples` requests of each operation in `part`. Return how many operations; report all failures."""
    count, failed = 0, []
    for operation in list(operations(schema))[part]:
        count += 1
        try:
            _try_out(operation, ours, examples, at_random=at_random)
        except (FailureGroup, ExceptionGroup) as error:
            failed.append(f"{operation.label}: {error}")
    assert not failed, "\n\n".join(failed)
    return count


def _try_out(operation: Any, ours: Tenant, examples: int, *, at_random: bool) -> None:
    model = MODELS.get(operation.path.replace("{id}", "{pk}"))
    own = ours.row(model).pk if model is not None else None

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=not at_random,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(), by_key=st.booleans(), own_row=st.integers(0, 4))
    def send(case: Any, by_key: bool, own_row: int) -> None:
        if own is not None and own_row:
            case.path_parameters["id"] = own
        headers, cookies = _as_key(ours) if by_key else _as_admin(ours)
        headers["Accept-Encoding"] = "identity"  # Schemathesis decompresses no response of a WSGI application
        with transaction.atomic():
            case.call_and_validate(headers=headers, cookies=cookies, checks=CHECKS)
            transaction.set_rollback(True)

    send()


def _as_key(of: Tenant) -> tuple[dict[str, str], dict[str, str]]:
    return {"Authorization": f"Bearer {of.key}"}, {}


def _as_admin(of: Tenant) -> tuple[dict[str, str], dict[str, str]]:
    session = of.cookies[of.admin.pk]
    return {"X-CSRFToken": CSRF}, {django_settings.SESSION_COOKIE_NAME: session, "csrftoken": CSRF}


def test_no_server_error_and_no_undocumented_response(schema: Any, ours: Tenant) -> None:
    assert walk(schema, ours, EXAMPLES, at_random=False) > 80


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(SOAK_PARTS))
def test_hundreds_of_random_requests_of_each_operation(schema: Any, ours: Tenant, part: int) -> None:
    assert walk(schema, ours, SOAK_EXAMPLES, at_random=True, part=slice(part, None, SOAK_PARTS))
