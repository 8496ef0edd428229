"""Apprise's plugins send nothing past the guarded client."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest
import requests

from notifications.channels import chat, guarded_requests

PLUGINS = ("slack", "workflows", "google_chat", "telegram", "ntfy", "custom_json")
NETWORK = {"socket", "ssl", "http", "urllib3", "httpx", "aiohttp", "subprocess", "smtplib", "ftplib", "asyncio"}


@pytest.mark.parametrize("name", PLUGINS)
def test_plugin_uses_the_network_by_the_name_of_requests_only(name: str) -> None:
    module = importlib.import_module(f"apprise.plugins.{name}")
    tree = ast.parse(Path(str(module.__file__)).read_text())
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name if alias.asname is None else "renamed" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.add(f"{node.module} (from)")
    roots = {one.split(" ")[0].split(".")[0] for one in imported}
    assert "requests" in imported
    assert "requests (from)" not in imported
    assert not roots & NETWORK
    assert "urllib.request" not in imported
    assert chat.load_plugin(name).requests is guarded_requests._guarded


def test_request_outside_an_exchange_is_refused() -> None:
    with pytest.raises(LookupError):
        chat.load_plugin("slack").requests.post("https://example.org/", data="{}")


@pytest.mark.parametrize("options", [{"method": "GET"}, {"method": "POST", "files": {"a": b"x"}}])
def test_only_a_post_without_files_is_allowed(options: dict[str, object]) -> None:
    with guarded_requests.Exchange(1, 5.0), pytest.raises(requests.RequestException, match="Only a POST"):
        guarded_requests._guarded.request(url="https://example.org/", **options)


def test_module_that_does_not_use_requests_is_not_trusted() -> None:
    with pytest.raises(RuntimeError, match="does not use requests as expected"):
        guarded_requests.install(ast)
