"""Check the search of the admin (Ctrl+K): it finds the pages that the user may open."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from django.test import Client

from tests.console.test_ids import NO_IDS
from tests.support import factories

pytestmark = pytest.mark.django_db

SEARCH = "/admin/search/?extended=1&s="


def test_admin_finds_pages_by_name_and_by_group() -> None:
    client = factories.browser(factories.admin(factories.organization()))
    for _ in range(2):
        page = client.get(f"{SEARCH}exclusion").content.decode()
        assert 'href="/admin/schedules/exclusioncalendar/"' in page
        assert page.count("<a ") == 1
    assert 'href="/admin/telephony/call/"' in client.get(f"{SEARCH}PHONE").content.decode()
    assert client.get(SEARCH).content == b""
    assert "No results" in client.get(f"{SEARCH}nothing-like-it").content.decode()


def test_dispatcher_finds_only_pages_of_their_own() -> None:
    client = factories.browser(factories.dispatcher(factories.organization()))
    page = client.get(f"{SEARCH}e").content.decode()
    assert 'href="/admin/jobs/job/"' in client.get(f"{SEARCH}job").content.decode()
    assert "/admin/accounts/apikey/" not in page
    assert "/admin/leads/engineswitch/" not in page


@pytest.mark.parametrize("page", [*(text for text in NO_IDS if "\x00" not in text), "0", "x", "7"])
def test_invalid_page_is_the_first(client: Client, page: str) -> None:
    client.force_login(factories.admin(factories.organization()))
    assert client.get(f"{SEARCH}call&page={quote(page)}").status_code == 200
