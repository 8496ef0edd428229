"""Where a submission is: form, ZIP code, geocoder; and when we would rather not say."""

import http.server
import json
import threading
import urllib.parse

import pytest

from accounts.models import Organization
from dispatch.jobs.geocoding import geocode, geocode_with_reason, zip_guesses

PHOENIX = Organization(name="Phoenix", default_region="US")
BERLIN = Organization(name="Berlin", default_region="DE")


def zip_of(address):
    guesses = zip_guesses(address)
    return guesses[0].code if guesses else None


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("200 W Washington St, Phoenix, AZ 85003", "85003"),
        ("200 W Washington St, Phoenix, AZ 85003-1611", "85003"),
        ("200 W Washington St, Phoenix, AZ, 85003, USA", "85003"),
        ("12345 N Scottsdale Rd, Scottsdale, AZ 85254", "85254"),
        ("12345 N Scottsdale Rd, Scottsdale, Arizona 85254 United States", "85254"),
        ("401 e jefferson, phoenix, az 85004", "85004"),
        ("Phoenix 85004", "85004"),
        ("85004", "85004"),
        ("10220 Montgomery Blvd, Albuquerque, New Mexico 87111", "87111"),
        ("14500 W Colfax Ave, Lakewood CO 80401, gate code 11223", "80401"),
        ("PO Box 20148, Mesa, AZ 85277", "85277"),
        ("1 Main St, Phoenix AZ 85004 (behind 85006 market)", "85004"),
        ("1 Main St, 85004 (blue door)", "85004"),
    ],
)
def test_the_zip_code_is_read_from_the_address(address, code):
    assert zip_of(address) == code


@pytest.mark.parametrize(
    "address",
    [
        "12345 N Scottsdale Rd, Scottsdale",
        "Mill Plaza, 40210 N Mill Ave, Tempe",
        "5 Elm St, Tempe, Apt 20148",
        "5 Elm St, Tempe #20148",
        "Route 10115",
        "call 6025550123 first",
        "A12345",
        "",
    ],
)
def test_house_flat_road_and_phone_numbers_are_no_zip_code(address):
    assert zip_of(address) is None


def place(address="", lat=None, lng=None, organization=PHOENIX):
    return geocode(lat=lat, lng=lng, address=address, organization=organization)


def why(address="", lat=None, lng=None, organization=PHOENIX):
    found, reason = geocode_with_reason(lat=lat, lng=lng, address=address, organization=organization)
    assert found is None
    return reason


def test_coordinates_of_the_form_win_over_the_address():
    found = place("Phoenix, AZ 85004", lat=35.1983, lng=-111.6513)
    assert (found.lat, found.lng, found.source) == (35.1983, -111.6513, "form")


def test_zero_degrees_are_a_position():
    assert place(lat=0.0, lng=0.0).source == "form"


def test_an_address_is_placed_by_its_zip_code_without_a_network():
    found = place("401 E Jefferson St, Phoenix, AZ 85004")
    assert found.source == "zip"
    assert (found.lat, found.lng) == pytest.approx((33.4557, -112.0686), abs=0.01)


def test_unplaceable_address_has_a_reason():
    assert why() == "No address or coordinates were given."
    assert why("somewhere behind the mall") == "The address has no ZIP code."
    assert why("1 Main St, Phoenix, AZ 00000") == "ZIP code 00000 is unknown."
    assert why("1 Main St, Phoenix, AZ 99501") == "ZIP code 99501 is not in Arizona."
    assert why(lat=91.0, lng=0.0) == "The coordinates are out of range."


def test_a_military_zip_code_is_not_a_place_in_the_atlantic():
    assert why("Unit 2050, APO AE 09001") == "ZIP code 09001 is unknown."


def test_five_digits_outside_the_united_states_are_no_zip_code():
    assert "no geocoder is configured" in why("Invalidenstr. 117, 10115 Berlin", organization=BERLIN)


@pytest.fixture
def geocoder(settings):
    """A Nominatim on this machine: answers from `places`, or with `status`."""

    class Server(http.server.ThreadingHTTPServer):
        places: dict[str, tuple[str, str]] = {}
        status = 200

    class Handler(http.server.BaseHTTPRequestHandler):
        server: Server

        def do_GET(self):
            query = urllib.parse.parse_qs(urllib.parse.urlparse(self.path).query)["q"][0]
            found = self.server.places.get(query)
            body = json.dumps([{"lat": found[0], "lon": found[1], "display_name": query}] if found else [])
            self.send_response(self.server.status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args):
            pass

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings.GEOCODER = "nominatim"
    settings.GEOCODER_CONFIG = {
        "domain": f"127.0.0.1:{server.server_port}", "scheme": "http", "user_agent": "dispatch-tests",
    }  # fmt: skip
    yield server
    server.shutdown()
    server.server_close()


def test_the_geocoder_is_asked_when_there_is_no_zip_code(geocoder):
    geocoder.places["Invalidenstr. 117, 10115 Berlin"] = ("52.5307", "13.3849")
    found = place("Invalidenstr. 117, 10115 Berlin", organization=BERLIN)
    assert (found.lat, found.lng, found.source) == (52.5307, 13.3849, "nominatim")


def test_known_zip_code_skips_the_geocoder(geocoder):
    geocoder.status = 500
    assert place("Phoenix, AZ 85004").source == "zip"


def test_failing_geocoder_leaves_the_position_unknown(geocoder):
    assert why("behind the mall") == "The geocoder nominatim did not find the address."
    geocoder.status = 500
    assert "The geocoder nominatim failed" in why("behind the mall")
    geocoder.shutdown()
    geocoder.server_close()
    assert "The geocoder nominatim failed" in why("behind the mall")
