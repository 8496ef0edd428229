"""A Spanish dispatcher and an English one look at the same board."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from playwright.sync_api import Page, expect

from accounts.models import User
from dispatch.core import clock
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.technicians.models import Technician
from tests.e2e.test_attention import shot
from tests.e2e.test_board import accessible, live, tell_people
from tests.e2e.test_map import tiles  # noqa: F401
from tests.e2e.test_timeline import grab
from tests.harness.jobs import MARIA, Floor
from tests.support import factories as make

pytestmark = pytest.mark.browser

# Words of English sentences that no Spanish page has outside of names.
ENGLISH = re.compile(
    r"\b(?:the|your|with|waiting|assigned|nobody|technicians?|jobs?|ago|claimed|needs)\b", re.IGNORECASE
)


def spanish(person: User) -> User:
    person.language = "es"
    person.save(update_fields=["language"])
    return person


def without_english(page: Page, selector: str) -> None:
    for text in page.locator(selector).all_inner_texts():
        assert not ENGLISH.search(text), text


def test_two_dispatchers_follow_one_job_each_in_their_language(floor: Floor, sign_in):
    floor.submit(customer_name="Rosa Díaz", address="100 N Central Ave, Phoenix, AZ 85004")
    floor.work()
    (job,) = Job.objects.all()
    (bob,) = floor.crew("Bob")
    dana, kim = spanish(make.dispatcher(floor.organization, "Dana")), make.dispatcher(floor.organization, "Kim")
    tell_people()
    theirs, page = live(sign_in(kim, path="/board/")), sign_in(dana, path="/board/")
    expect(page.locator("#connection")).to_have_text("En vivo")
    expect(page.locator("html")).to_have_attribute("lang", "es")
    expect(page.locator("#attention-title")).to_have_text("Requiere atención")
    without_english(page, ".top, #health, .bar, #lists, #crew-slot")
    row, other = (at.locator(f'[data-id="job-{job.pk}"]') for at in (page, theirs))
    expect(row).to_contain_text("No hay un técnico calificado cerca")
    expect(other).to_contain_text("No qualified technician nearby")
    row.get_by_role("button", name="Tomar").click()
    expect(row).to_contain_text("Lo tiene usted")
    expect(other).to_contain_text("Claimed by Dana")
    alert = page.locator("#alert-bar")
    expect(alert).to_contain_text("necesita un despachador")
    expect(theirs.locator("#alert-bar")).to_contain_text("needs a dispatcher")
    alert.get_by_role("button", name="Confirmar").click()
    expect(alert).to_be_hidden()
    expect(theirs.locator("#alert-bar")).to_be_hidden()
    row.locator("a.open").click()
    page.locator("#act-assign").click()
    expect(page.locator("#ask-title")).to_have_text("Asignar este trabajo")
    page.locator("#ask").get_by_label("Bob").check()
    page.locator("#ask").get_by_label(re.compile("Asignar de todos modos")).check()
    page.locator("#ask [data-do]").click()
    for at, words in ((page, "Asignado"), (theirs, "Assigned")):
        card = at.locator(f'[data-list="assigned"] [data-id="{job.pk}"]')
        expect(card).to_contain_text(words)
        expect(card).to_contain_text("Bob")
    assert floor.job(job).technician == bob
    expect(page.locator("#notices")).to_contain_text(f"Trabajo #{job.pk}: asignado.")


def test_markers_of_the_map_and_limits_on_the_timeline_are_in_spanish(floor: Floor, sign_in, tiles):  # noqa: F811
    bob = floor.technician("Bob", max_open_jobs=1)
    floor.technician("Ann")  # where Bob is
    floor.technician("Kim", km=20)
    Technician.objects.update(position_at=clock.now() - timedelta(hours=2))
    services.assign(floor.started().pk, bob.pk, actor=MARIA, confirm_unfit=True)
    job = floor.started(customer_phone="+16025550177")
    services.pause(job.pk, actor=MARIA)
    page = sign_in(spanish(make.dispatcher(floor.organization, "Dana")), path="/board/?map=1")
    expect(page.locator('#map [aria-label*="Kim"]')).to_have_attribute(
        "aria-label", "Kim, disponible, posición de hace más de una hora"
    )
    expect(page.locator("#map .group.technicians")).to_have_text(["2técnicos"])
    expect(page.locator("#map .group.jobs")).to_have_text(["2trabajos"])
    page.goto(page.url.split("/board")[0] + "/board/timeline/")
    expect(page.locator("#connection")).to_have_text("En vivo")
    grab(page, page.locator(f'.tray [data-drag="{job.pk}"]'))
    box = page.locator(f'.technician[data-technician="{bob.pk}"] .track').bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + box["height"] / 2, steps=5)
    expect(page.locator(".dragged .bad")).to_contain_text("1 de 1 trabajo abierto a esa hora")
    page.mouse.up()


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1440, "light"),
        (390, "dark"),
        pytest.param(768, "light", marks=pytest.mark.soak),
        pytest.param(1440, "dark", marks=pytest.mark.soak),
        pytest.param(390, "light", marks=pytest.mark.soak),
    ],
)
def test_spanish_pages_are_legible_and_accessible(floor: Floor, sign_in, width, scheme):
    floor.crew("Ann", "Bob")
    job = floor.started()
    dana = spanish(make.dispatcher(floor.organization, "Dana"))
    page = sign_in(dana, path=f"/board/?job={job.pk}&map=1", width=width, scheme=scheme)
    for name, path in (
        ("board", f"/board/?job={job.pk}"),
        ("map", "/board/?map=1"),
        ("timeline", "/board/timeline/"),
        ("choices", "/notifications/choices/"),
    ):
        page.goto(page.url.split("/board")[0].split("/notifications")[0] + path)
        expect(page.locator("#connection")).to_have_text("En vivo")
        accessible(page)
        shot(page, f"spanish-{name}-{width}-{scheme}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
