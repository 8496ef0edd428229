"""A body in an unusual charset is refused before anything decodes it."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

import pytest
import requests

from dispatch.core.web import charsets
from dispatch.jobs.models import Submission
from tests.support import factories
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)

MULTIPART = "multipart/form-data; boundary=B"
FORM = b'--B\r\nContent-Disposition: form-data; name="username"\r\n\r\nxxxx-aaaa\r\n--B--\r\n'
PLACES = {
    "/f/alphaville/": (MULTIPART, FORM),
    "/admin/login/": (MULTIPART, FORM),
    "/api/v1/submissions/": ("application/json", b'{"notes": "xxxx-aaaa"}'),
    "/api/v1/leads/bulk/": ("application/json", b'{"leads": []}'),
    "/telephony/twilio/calls/1/status": ("application/x-www-form-urlencoded", b"CallSid=CA1"),
}


def post(app_url: str, path: str, content_type: str, body: bytes) -> requests.Response:
    headers = {"Content-Type": content_type, "Cookie": "csrftoken=" + "x" * 32}
    return requests.post(f"{app_url}{path}", data=body, headers=headers, timeout=PATIENCE)


@pytest.mark.parametrize("path", PLACES)
@pytest.mark.parametrize(
    "parameter",
    [
        "charset=punycode", "charset=hex", "charset=zlib", "charset=rot13", "charset=cp037", "charset=utf-7",
        "charset=unicode_escape", "charset=utf-16", 'CHARSET="idna"', "charset=utf-8; charset=hex",
        "charset*=utf-8''hex", "charset*0=puny; charset*1=code", "x*=punycode''xxxx-aaaa", "x*=nowhere''y",
    ],
)  # fmt: skip
def test_unusual_charsets_are_unsupported_everywhere(app_url: str, path: str, parameter: str) -> None:
    content_type, body = PLACES[path]
    refused = post(app_url, path, f"{content_type}; {parameter}", body)
    assert (refused.status_code, refused.headers["Content-Type"]) == (415, "application/problem+json")
    problem = refused.json()
    assert problem["type"] == "urn:dispatch:problem:unsupported_media_type"
    assert "UTF-8" in problem["detail"]


def test_a_charset_in_a_repeated_header_is_found(app_url: str) -> None:
    where = urlsplit(app_url)
    head = (
        f"POST /admin/login/ HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: {len(FORM)}\r\n"
        f"Content-Type: {MULTIPART}\r\nContent-Type: x; charset=hex\r\n\r\n"
    )
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as connection:
        connection.sendall(head.encode() + FORM)
        assert connection.recv(1000).startswith(b"HTTP/1.1 415 ")


@pytest.mark.parametrize("parameters", ['; x="' + ";" * 50_000, "x" * 1001, "; charset=utf-8" * 100])
def test_a_long_content_type_is_refused_before_it_is_parsed(
    app_url: str, parameters: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, parsed = charsets.parse_header_parameters, []
    monkeypatch.setattr(charsets, "parse_header_parameters", lambda text: parsed.append(text) or parse(text))
    refused = post(app_url, "/admin/login/", f"{MULTIPART}{parameters}", FORM)
    assert (refused.status_code, refused.headers["Content-Type"]) == (415, "application/problem+json")
    assert refused.json()["detail"] == "The Content-Type is longer than 1000 characters."
    assert not [text for text in parsed if len(text) > 1000]


def test_a_charset_without_a_body_is_unsupported_too(app_url: str) -> None:
    headers = {"Content-Type": "text/plain; charset=hex"}
    assert requests.get(f"{app_url}/admin/login/?q=%41", headers=headers, timeout=PATIENCE).status_code == 415


@pytest.mark.parametrize(
    ("charset", "codec"),
    [
        ("utf-8", "utf-8"), ("UTF8", "utf-8"), ("latin-1", "latin-1"), ("ISO-8859-1", "latin-1"),
        ("windows-1252", "cp1252"), ("a-name-nobody-knows", "utf-8"),
    ],
)  # fmt: skip
def test_usual_charsets_are_read(app_url: str, charset: str, codec: str) -> None:
    organization = factories.organization()
    factories.service_type(organization, "plumbing")
    key = factories.api_key(organization)
    form = factories.form("plumbing", customer_name="Åsa", customer_phone="+16025550123")
    sent = requests.post(
        f"{app_url}/api/v1/submissions/",
        data=json.dumps(form, ensure_ascii=False).encode(codec),
        headers={"Content-Type": f"application/json; charset={charset}", "Authorization": f"Bearer {key}"},
        timeout=PATIENCE,
    )
    assert (sent.status_code, Submission.objects.get().form["customer_name"]) == (202, "Åsa")
    page = post(app_url, "/admin/login/", f"{MULTIPART}; charset={charset}", FORM)
    assert page.status_code == 403, "without a CSRF token"
