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

from dispatch.core.web.static_files import StaticFilesMiddleware

NAME = "admin/css/base.css"


def test_file_is_served_once_and_then_cached(app_url: str) -> None:
    with open(finders.find(NAME), "rb") as file:
        content = file.read()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # especially about synchronous iterators
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


def test_production_serves_static_files_from_sources_and_no_stale_files(settings: Any, tmp_path: Path) -> None:
    settings.WHITENOISE_AUTOREFRESH = False
    settings.STATIC_ROOT = tmp_path / "collected"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # that the folder is missing
        StaticFilesMiddleware(lambda request: HttpResponse(status=404))
    (settings.STATIC_ROOT / "admin/css").mkdir(parents=True)
    for name in (NAME, "gone.css"):
        (settings.STATIC_ROOT / name).write_text("of an earlier version")

    serve = StaticFilesMiddleware(lambda request: HttpResponse(status=404))

    found = {name: serve(RequestFactory().get(static(name))) for name in (NAME, "dispatch/tokens.css", "gone.css")}
    assert [answer.status_code for answer in found.values()] == [200, 200, 404]
    assert found[NAME].content == Path(finders.find(NAME)).read_bytes()
