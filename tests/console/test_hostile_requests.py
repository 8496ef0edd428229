"""No page of the console, and no public page, fails for a hostile query string or form.

The soak sends every URL all values, and measures what each request costs (`tests/soak/test_hostile_requests.py`).
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.hostile_requests import Walk
from tests.support.tenants import Tenant

pytestmark = pytest.mark.django_db

OF_OTHER_TESTS = ("admin/", "api/", "^api/", "account/")  # accounts, API and admin have their own
NAMES = (
    "q", "page", "status", "since", "until", "id", "ids", "selected", "phone", "day", "month", "from", "to", "kind",
    "service", "technician", "before", "after", "version", "order", "minutes", "lat", "lng", "payload", "cron",
    "time_zone", "starts_at", "name", "address", "body", "reason", "organization", "next", "said", "credential",
)  # fmt: skip
VALUES = {"digits": "9" * 5000, "unicode digits": "²٣", "nested": '{"a":' * 2000}


@pytest.mark.parametrize("value", VALUES)
def test_no_page_fails_for_a_hostile_value(ours: Tenant, settings: Any, value: str) -> None:
    settings.PUBLIC_FORM_RATE = settings.LINK_GUESS_RATE = "1000000/s"
    walk = Walk(ours, ours.dispatcher)
    given = urlencode(dict.fromkeys(NAMES, VALUES[value]))
    for address in walk.addresses(but=OF_OTHER_TESTS):
        if "unicode" in value:
            walk.send("GET", f"{address}?{given}", what=value)
        walk.send("POST", address, given, what=value)
    assert walk.tried >= 50
    assert not walk.problems, "\n".join(walk.problems)
