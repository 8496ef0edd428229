"""An admin chooses a voice and plays its preview in a real browser; the phone page shows its SSML."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from accounts.models import User
from tests.e2e.test_attention import shot
from tests.phones import manual
from tests.support import factories as make

pytestmark = pytest.mark.browser
PHONE = "+16025550199"


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_an_admin_chooses_a_voice_and_is_called(floor, sign_in, width, scheme):
    ana = floor.technician("Ana Ruiz")
    boss = make.admin(floor.organization)
    User.objects.filter(pk=boss.pk).update(phone=PHONE)
    floor.sim.phone(PHONE).will(manual())
    path = f"/admin/technicians/technician/{ana.pk}/change/"
    page = sign_in(boss, path=path, width=width, scheme=scheme)
    page.locator("#id_language").select_option("es")
    page.locator("#id_voice").select_option("Polly.Joanna-Neural")
    page.get_by_role("button", name="Save and continue editing").click()
    expect(page.locator("body")).to_contain_text("This voice doesn't speak Spanish.")
    page.locator("#id_voice").select_option("Polly.Mia-Neural")
    page.get_by_role("button", name="Save and continue editing").click()
    expect(page.locator("#id_voice")).to_have_value("Polly.Mia-Neural")
    page.goto(f"{page.url.removesuffix('change/')}voice-preview/")
    expect(page.locator("ol[lang=es]")).to_contain_text("Esta es una muestra.")
    page.get_by_text("The document for the phone provider").click()
    expect(page.locator("pre")).to_contain_text('<lang xml:lang="en-US">W Washington St</lang>')
    shot(page, f"voice-preview-{width}-{scheme}")
    page.get_by_role("button", name="Call me at (602) 555-0199").click()
    expect(page.locator("body")).to_contain_text("Calling (602) 555-0199.")
    floor.tick()
    call = floor.sim.phone(PHONE).rings().answer().hears("Esta es una muestra.").ended("completed")
    assert {words["voice"] for words in call.now["said"]} == {"Polly.Mia-Neural"}
