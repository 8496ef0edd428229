"""Compression of pages and of static files."""

from __future__ import annotations

import gzip

import pytest
from django.http import HttpResponse, StreamingHttpResponse
from django.test import Client, RequestFactory

from dispatch.core.web import compression
from dispatch.core.web.compression import CompressionMiddleware, accepts_gzip

GZIP = {"Accept-Encoding": "gzip, deflate, br"}
TEXT = "<p>Water heater repair</p>" * 200
BOARD_JS = "/static/dispatch/board.js"


def respond(response: HttpResponse, encoding: str = "gzip") -> HttpResponse:
    request = RequestFactory().get("/", headers={"Accept-Encoding": encoding})
    return CompressionMiddleware(lambda _: response)(request)


@pytest.mark.parametrize(
    ("header", "accepted"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False), ("gzip; q=0.0, br", False), ("br", False)],
)  # fmt: skip
def test_gzip_is_used_only_if_the_client_accepts_it(header, accepted):
    assert accepts_gzip(RequestFactory().get("/", headers={"Accept-Encoding": header})) == accepted


def test_text_is_compressed_and_varies_by_encoding():
    answer = respond(HttpResponse(TEXT))
    assert gzip.decompress(answer.content).decode() == TEXT
    assert (answer["Content-Encoding"], answer["Vary"]) == ("gzip", "Accept-Encoding")
    assert int(answer["Content-Length"]) == len(answer.content) < len(TEXT) / 5
    plain = respond(HttpResponse(TEXT), "identity")
    assert (plain.content.decode(), plain["Vary"]) == (TEXT, "Accept-Encoding")


def test_lengths_of_compressed_pages_differ():
    assert len({len(respond(HttpResponse(TEXT)).content) for _ in range(20)}) > 1


def test_other_responses_stay_as_they_are():
    tagged = HttpResponse(TEXT, headers={"ETag": '"7"'})
    encoded = HttpResponse(gzip.compress(TEXT.encode()), headers={"Content-Encoding": "gzip"})
    for answer in (HttpResponse("short"), HttpResponse(b"x" * 5000, content_type="image/png"), tagged, encoded):
        before = answer.content
        assert respond(answer).content == before
    assert tagged["ETag"] == '"7"', "the version of a row, which a client sends back"
    stream = respond(StreamingHttpResponse([TEXT]))
    assert not stream.has_header("Content-Encoding")


def test_static_files_are_compressed_once_and_revalidated(client: Client):
    plain = client.get(BOARD_JS)
    answer = client.get(BOARD_JS, headers=GZIP)
    assert gzip.decompress(answer.content) == plain.content
    assert len(answer.content) < len(plain.content) / 2
    assert (answer["Content-Encoding"], answer["Vary"]) == ("gzip", "Accept-Encoding")
    assert answer["ETag"] != plain["ETag"]
    again = client.get(BOARD_JS, headers={**GZIP, "If-None-Match": answer["ETag"]})
    assert (again.status_code, again["ETag"], again.content) == (304, answer["ETag"], b"")
    assert client.get(BOARD_JS, headers={"If-None-Match": plain["ETag"]}).status_code == 304
    part = client.get(BOARD_JS, headers={**GZIP, "Range": "bytes=0-9"})
    assert (part.status_code, part.content) == (206, plain.content[:10])
    image = client.get("/static/dispatch/icon-192.png", headers=GZIP)
    assert not image.has_header("Content-Encoding")


def test_files_that_were_compressed_are_bounded(monkeypatch):
    monkeypatch.setattr(compression, "MAX_FILES", 2)
    for key in "abc":
        compression.compress_file(key, TEXT.encode())
    assert list(compression._files) == ["b", "c"]
