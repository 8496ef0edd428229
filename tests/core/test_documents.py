"""README and guides: links work, and the files, commands and codes that they name exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import get_commands
from django.urls import Resolver404, resolve

from dispatch.telephony.providers import twilio_codes

ROOT = Path(settings.BASE_DIR)
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Written by `make bench`; and the example of a new provider.
NOT_HERE = {"bench.json", "dispatch/telephony/providers/acme.py", "not-imported.txt"}

METHODS = ("get", "post", "patch", "put", "delete")

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub generates from headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@by_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        there = page.parent / target if target else page
        assert there.exists(), link
        assert not anchor or anchor in anchors(there), link


@by_page
def test_files_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"`([\w./-]+\.(?:py|html|yml|yaml|json|css|js|md|txt|jsonl))`", page.read_text()))
    folders = set(
        re.findall(r"`((?:dispatch|tests|templates|deploy|notifications|accounts)/[\w./-]*)`", page.read_text())
    )
    for name in (named | folders) - NOT_HERE:
        found = (ROOT / name).exists() or any(
            next((ROOT / part).rglob(name), None) for part in ("dispatch", "tests", "docs", "deploy", "templates")
        )
        assert found, name


@by_page
def test_commands_that_are_named_exist(page: Path) -> None:
    text = page.read_text()
    assert set(re.findall(r"manage\.py ([a-z_]+)", text)) <= set(get_commands())
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)[` ]", text)) <= targets


def resolved_methods(path: str) -> set[str]:
    """Return the HTTP methods that the API answers at a path; an empty set if the path does not exist."""
    try:
        view: Any = resolve(path).func
    except Resolver404:
        return set()
    actions = getattr(view, "actions", None) or {}
    offered = {*actions} or {name for name in METHODS if hasattr(getattr(view, "cls", None), name)}
    return {name.upper() for name in offered or METHODS}


@by_page
def test_requests_that_are_named_exist(page: Path) -> None:
    text = re.sub(r"\s+", " ", page.read_text())
    named = re.findall(r"\b(GET|POST|PATCH|PUT|DELETE) (/api/v1/[\w/<>{}-]+)", text)
    for method, path in named:
        assert method in resolved_methods(re.sub(r"\{\w+\}|<\w+>", "1", path)), f"{method} {path}"


def test_every_guide_can_be_found() -> None:
    """Every guide is at most two clicks from the README."""
    linked = set(
        re.findall(
            r"\]\((?:[\w.]+/)*([\w-]+\.md)",
            PAGES[0].read_text() + (ROOT / "docs/README.md").read_text(),
        )
    )
    assert {page.name for page in PAGES[2:]} <= linked


def test_twilios_codes_are_explained() -> None:
    table = (ROOT / "docs" / "guides" / "twilio.md").read_text().partition("| code |")[2]
    told = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for code in row.split(", ")}
    dealt_with = (
        twilio_codes.NUMBER
        | twilio_codes.PERMISSION
        | twilio_codes.CONFIGURATION
        | twilio_codes.OPTED_OUT
        | twilio_codes.FILTERED
        | twilio_codes.TEMPORARY
        | twilio_codes.LATER
    )
    assert told == dealt_with
