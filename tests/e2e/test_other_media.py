"""Forced colors, paper, the narrowest screens and open dialogs: nothing that is said elsewhere is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from accounts.models import User
from tests.support.tenants import tenant

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

# WCAG 1.4.12.
SPACING = "* { line-height: 1.5 !important; letter-spacing: 0.12em !important; word-spacing: 0.16em !important; }"


@pytest.mark.parametrize(("language", "width"), [("en", 320), ("es", 390)])
def test_board_with_unread_alerts_fits(
    app_url: str, sign_in: Callable[..., Page], language: str, width: int
) -> None:
    ours = tenant("Alphaville")
    User.objects.filter(pk=ours.admin.pk).update(language=language)
    page = sign_in(ours.admin, path="/board/", width=width)
    page.evaluate(
        """words => {
        document.getElementById("unread-words").textContent = words;
        document.getElementById("pick").hidden = false;
    }""",
        {"en": "24 unread", "es": "24 sin leer"}[language],
    )
    for style in ("main {}", SPACING):
        page.add_style_tag(content=style)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
