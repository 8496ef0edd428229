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
    "q", "page", "status", "since", "until", "id", "ids", "selected", "phone", "day", "month", "from", "to",
    "kind", "service", "technician", "before", "after", "version", "order", "minutes", "lat", "lng", "payload",
    "cron", "time_zone", "starts_at", "name", "address", "body", "reason", "organization", "next", "said",
)  # fmt: skip


@pytest.mark.parametrize("value", ["9" * 5000, "[[],[]],{}," * 2400])
def test_no_page_fails_for_thousands_of_digits_or_lists(ours: Tenant, settings: Any, value: str) -> None:
    settings.PUBLIC_FORM_RATE = settings.LINK_GUESS_RATE = "1000000/s"
    walk = Walk(ours, ours.dispatcher)
    given = urlencode(dict.fromkeys(NAMES, value), safe="[]{},")
    failed = {}
    for address in walk.addresses(but=OF_OTHER_TESTS):
        if (status := walk.send("POST", address, given).status) >= 500:
            failed[address] = status
    assert walk.tried >= 50
    assert walk.send("GET", "/api/v1/me/").status == 200, "still signed in"
    assert failed == {}


def test_the_admin_does_not_reveal_which_rows_exist(ours: Tenant) -> None:
    walk = Walk(ours, ours.dispatcher)
    assert {walk.send("GET", f"/admin/r/{kind}/1/").status for kind in (1, 5, 999)} == {404}
