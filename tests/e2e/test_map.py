"""A dispatcher works on the map in a real browser, with tiles from a server on this machine."""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Page, Route, expect

from dispatch.jobs import services
from tests.e2e.screens import SCREENS
from tests.e2e.test_attention import shot
from tests.e2e.test_board import accessible, live
from tests.e2e.test_panel_requests import first, settle
from tests.harness.jobs import MARIA, Floor
from tests.support import factories as make

pytestmark = pytest.mark.browser


def png(shade: int) -> bytes:
    """Return a gray tile of 256 x 256 pixels with a darker edge."""
    edge = max(0, shade - 24)
    full, row = bytes([0] + [edge] * 256), bytes([0, edge] + [shade] * 255)
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", 256, 256, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(full + row * 255)),
        (b"IEND", b""),
    ]
    chunks = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


class Tiles(BaseHTTPRequestHandler):
    """Answer each tile with a picture, or 404 while `are_gone`."""

    are_gone = False
    picture = png(226)

    def do_GET(self) -> None:
        self.send_response(404 if self.are_gone else 200)
        self.send_header("Content-Type", "image/png")
        self.end_headers()
        self.wfile.write(b"" if self.are_gone else self.picture)

    def log_message(self, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def tiles(settings, monkeypatch) -> Iterator[type[Tiles]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Tiles)
    threading.Thread(target=server.serve_forever, name="tiles", daemon=True).start()
    settings.MAP_TILES_URL = f"http://127.0.0.1:{server.server_port}/{{z}}/{{x}}/{{y}}.png"
    monkeypatch.setattr(Tiles, "are_gone", False)
    yield Tiles
    server.shutdown()
    server.server_close()


def marker(page: Page, words: str):
    return page.locator(f'#map .map-marker[aria-label*="{words}"]')


def test_a_job_is_opened_and_dragged_onto_a_technician(floor: Floor, sign_in, tiles):
    floor.technician("Ann", km=12)
    bob = floor.technician("Bob", km=6)
    job = floor.started()
    services.pause(job.pk, actor=MARIA)
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/?map=1"))
    expect(marker(page, f"#{job.pk}")).to_be_visible()
    expect(page.locator("#map figcaption")).to_contain_text("1 open job, 2 technicians")
    expect(page.locator("#map")).to_contain_text("© OpenStreetMap contributors")
    marker(page, f"#{job.pk}").hover()
    page.mouse.down()
    end = marker(page, "Bob").bounding_box()
    page.mouse.move(end["x"] + 17, end["y"] + 27, steps=6)
    expect(page.locator(".leaflet-tooltip")).to_contain_text("Assign")
    page.mouse.up()
    ask = page.locator("#ask")
    expect(ask.get_by_label("Bob")).to_be_checked()
    ask.locator("[name=confirm_unfit]").check()
    ask.get_by_role("button", name="Assign").click()
    expect(page.locator("#drawer-body")).to_contain_text("Dana assigned the job to Bob")
    assert floor.job(job).technician == bob
    expect(page.locator("#map figcaption")).to_contain_text(f"Job #{job.pk} with its candidates")
    page.keyboard.press("Escape")
    expect(page.locator("#map figcaption")).to_contain_text("2 technicians")
    expect(marker(page, "Ann")).to_be_visible()
    marker(page, f"#{job.pk}").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#drawer-title")).to_contain_text(f"#{job.pk}")


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_map_shows_the_cascade_and_is_accessible(floor: Floor, sign_in, tiles, width, scheme):
    ann = floor.technician("Ann", km=6)
    floor.technician("Bob", km=12)
    floor.started()
    floor.rings(ann)
    page = live(
        sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/?map=1", width=width, scheme=scheme)
    )
    expect(page.locator("#map path.map-call.live")).to_have_count(1)
    expect(page.locator("#map img.leaflet-tile-loaded").first).to_be_visible()
    shot(page, f"map-{width}-{scheme}")
    accessible(page)


def test_name_of_a_technician_is_text_while_a_job_is_dragged(floor: Floor, sign_in, tiles):
    floor.technician("<img src=x class=injected>", km=6)
    job = floor.started()
    services.pause(job.pk, actor=MARIA)
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/?map=1"))
    marker(page, f"#{job.pk}").hover()
    page.mouse.down()
    end = marker(page, "injected").bounding_box()
    page.mouse.move(end["x"] + 17, end["y"] + 27, steps=6)
    tip = page.locator(".leaflet-tooltip", has_text="Assign")
    expect(tip).to_have_text(f"Assign #{job.pk} to \u2068<img src=x class=injected>\u2069")
    expect(page.locator("img.injected")).to_have_count(0)
    page.mouse.up()


def test_late_answer_does_not_replace_what_was_drawn_after_it(floor: Floor, sign_in, tiles):
    floor.technician("Ann", km=6)
    job = floor.started()
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/?map=1"))
    caption = page.locator("#map figcaption")
    expect(caption).to_contain_text("1 open job, 1 technician")
    held: list[Route] = []
    page.route("**/map/points/*", lambda route: route.fallback() if held else held.append(route))
    page.evaluate("() => void window.Dispatch.board.drawMap()")
    late = first(page, held)
    answer = late.fetch()
    page.evaluate("id => window.Dispatch.board.open(id)", str(job.pk))
    expect(caption).to_contain_text(f"Job #{job.pk} with its candidates")
    late.fulfill(response=answer)
    settle(page)
    assert f"Job #{job.pk} with its candidates" in caption.inner_text()


def test_outline_is_drawn_while_tiles_cannot_be_loaded(floor: Floor, sign_in, tiles):
    tiles.are_gone = True
    floor.technician("Ann")
    job = floor.started()
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/"))
    page.get_by_role("link", name="Map").click()
    expect(page.locator(f"#map svg #pin-{job.pk}")).to_be_visible()
    expect(page.locator("#map .ground")).to_have_count(0)


def test_job_number_that_is_wider_than_its_pin_lies_on_the_color_of_the_pin(floor: Floor, sign_in):
    floor.technician("Ann")
    job = floor.started()
    page = live(sign_in(make.dispatcher(floor.organization, "Dana"), path="/board/?map=1"))
    pin = page.locator(f"#map svg #pin-{job.pk}")
    fill = pin.locator("path").evaluate("path => getComputedStyle(path).fill")
    expect(pin.locator("text")).to_have_css("stroke", fill)
    expect(pin.locator("text")).to_have_css("paint-order", "stroke")
