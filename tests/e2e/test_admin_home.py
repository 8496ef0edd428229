"""The charts of the admin's home page: their labels are readable and whole on a phone and on a large screen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from accounts.models import Organization, User
from tests.e2e.test_attention import shot

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

SMALLEST_PX = 11
# What is wrong with the labels that are shown: too small, outside of their card, or one over another.
PROBLEMS = """
(smallest) => [...document.querySelectorAll('.plot')].flatMap((plot) => {
  const card = plot.getBoundingClientRect();
  const labels = [...plot.querySelectorAll('svg text')].filter((label) => label.getClientRects().length);
  const boxes = labels.map((label) => label.getBoundingClientRect());
  return labels.flatMap((label, n) => [
    ...(parseFloat(getComputedStyle(label).fontSize) * label.getScreenCTM().a < smallest ? ['small'] : []),
    ...(boxes[n].left < card.left || boxes[n].right > card.right ? ['outside'] : []),
    ...boxes.slice(n + 1).filter((box) => box.left < boxes[n].right && boxes[n].left < box.right
      && box.top < boxes[n].bottom && boxes[n].top < box.bottom).map(() => 'over another'),
  ].map((problem) => `${label.textContent}: ${problem}`)).concat(labels.length ? [] : ['no labels']);
})
"""


@pytest.mark.parametrize("language", ["en", "es"])
def test_labels_of_charts_are_readable(company: Organization, sign_in: Callable[..., Page], language: str) -> None:
    User.objects.filter(email="admin@demo.example").update(language=language)
    page = sign_in(User.objects.get(email="admin@demo.example"), path="/admin/", scheme="dark")
    problems = []
    for width in (360, 390, 500, 768, 1024, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        expect(page.locator(".plot svg:visible")).to_have_count(2)
        problems += [f"{width} px: {problem}" for problem in page.evaluate(PROBLEMS, SMALLEST_PX)]
        shot(page, f"admin-home-{language}-{width}")
    assert not problems, "\n".join(problems)
