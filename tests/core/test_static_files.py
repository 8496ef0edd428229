"""Static files through the real web application."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import requests
from django.contrib.staticfiles import finders
from django.http import HttpResponse
from django.templatetags.static import static
from django.test import RequestFactory

from dispatch.core.static_files import StaticFilesMiddleware

NAME = "admin/css/base.css"


def test_a_file_comes_whole_and_is_not_sent_again(app_url: str) -> None:
    with open(finders.find(NAME), "rb") as file:
        content = file.read()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # above all about iterators that are not asynchronous
        first = requests.get(app_url + static(NAME), timeout=60)
    assert (first.status_code, first.content) == (200, content)
    assert first.headers["Content-Type"].startswith("text/css")
    same = {"If-Modified-Since": first.headers["Last-Modified"]}
    assert requests.get(app_url + static(NAME), headers=same, timeout=60).status_code == 304
    head = requests.head(app_url + static(NAME), timeout=60)
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["Content-Length"]) == int(first.headers["Content-Length"])
    part = requests.get(app_url + static(NAME), headers={"Range": "bytes=10-19"}, timeout=60)
    assert (part.status_code, part.content) == (206, content[10:20])
    assert requests.post(app_url + static(NAME), timeout=60).status_code == 405


def test_outside_development_nothing_has_to_be_collected_and_nothing_old_is_served(
    settings: Any, tmp_path: Path
) -> None:
    settings.WHITENOISE_AUTOREFRESH = False
    settings.STATIC_ROOT = tmp_path / "collected"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that there is no such folder
        StaticFilesMiddleware(lambda request: HttpResponse(status=404))
    (settings.STATIC_ROOT / "admin/css").mkdir(parents=True)
    for name in (NAME, "gone.css"):
        (settings.STATIC_ROOT / name).write_text("of an earlier version")

    serve = StaticFilesMiddleware(lambda request: HttpResponse(status=404))

    found = {name: serve(RequestFactory().get(static(name))) for name in (NAME, "dispatch/tokens.css", "gone.css")}
    assert [answer.status_code for answer in found.values()] == [200, 200, 404]
    assert found[NAME].content == Path(finders.find(NAME)).read_bytes()
