"""docs/reference/configuration.md lists every variable that the settings read, with its default."""

from __future__ import annotations

import ast
import re
from itertools import chain
from typing import Any

from dispatch.core.privacy import retention
from tests.support.processes import ROOT

ROW = re.compile(r"^\| `([A-Z_]+)` \| (.*?) \| .+ \|$", re.MULTILINE)
COMPUTED = object()  # a default that depends on something else; the page describes it in words


def documented() -> dict[str, str]:
    rows = ROW.findall((ROOT / "docs" / "reference" / "configuration.md").read_text())
    assert len(rows) == len(dict(rows)), "a variable has two rows"
    return dict(rows)


def read_by_settings() -> dict[str, Any]:
    """Return variable → default, of every `env.<kind>("NAME", default=…)` in the settings."""
    found: dict[str, Any] = {}
    sources = (path.read_text() for path in (ROOT / "dispatch" / "settings").glob("*.py"))
    for node in chain.from_iterable(ast.walk(ast.parse(source)) for source in sources):
        if isinstance(node, ast.Call) and re.fullmatch(r"env\.\w+", ast.unparse(node.func)):
            name = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
            if isinstance(name, str):
                given = [word.value for word in node.keywords if word.arg == "default"]
                found[name] = constant(given[0]) if given else COMPUTED
    return found


def constant(node: ast.expr) -> Any:
    if any(isinstance(part, ast.Name | ast.Call | ast.IfExp | ast.JoinedStr) for part in ast.walk(node)):
        return COMPUTED
    return eval(ast.unparse(node), {"__builtins__": {}})  # noqa: S307  (our own source: 7 * 86400)


def as_text(default: Any) -> str:
    if default in ("", [], {}):
        return "(empty)"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, list):
        return f"`{','.join(map(str, default))}`"
    return f"`{default}`"


def test_every_variable_has_its_row_and_every_row_its_variable() -> None:
    assert sorted(documented()) == sorted(read_by_settings())


def test_the_defaults_on_the_page_are_those_of_the_code() -> None:
    page = documented()
    for name, default in read_by_settings().items():
        if default is COMPUTED:
            assert page[name].startswith("("), f"{name}: its default depends on something; say on what"
        else:
            assert page[name] == as_text(default), name


def test_the_page_lists_what_retention_deletes_with_the_default() -> None:
    page = (ROOT / "docs" / "operations" / "security.md").read_text()
    _, _, section = page.partition("## Personal data")
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (\d+) \|$", section.partition("\n## ")[0], re.MULTILINE)
    registered = {kind.name: kind.default_days for kind in [*retention.kept.values(), *retention.shared.values()]}
    assert {name: int(days) for name, days in rows} == registered


def test_nothing_else_in_the_code_reads_settings_from_the_environment() -> None:
    allowed = {
        "environment.py",
        "asgi.py",
        "clock.py",
        "fault_injection.py",
        "stack.py",
        "supervisor.py",
        "metrics.py",
        "metric_files.py",
    }
    allowed |= {"embedded_servers.py"}  # its `make stop` runs without the settings
    for package in ("dispatch", "accounts", "notifications"):
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text()
            if path.name not in allowed and "NO_COLOR" not in text:
                assert not re.search(r"os\.environ(\.get\(|\[)", text), f"{path} reads the environment by itself"
