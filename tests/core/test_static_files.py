"""Static files through the real web application."""

from __future__ import annotations

import warnings

import requests
from django.contrib.staticfiles import finders
from django.templatetags.static import static

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
