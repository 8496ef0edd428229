"""The image installs exactly what pyproject.toml needs, in the tested versions, each file by its hash."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.core.test_deploy import DOCKERFILE
from tests.support.processes import ROOT


@pytest.fixture(scope="module")
def supply_chain() -> Any:
    spec = importlib.util.spec_from_file_location("supply_chain", ROOT / "deploy" / "supply_chain.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_lock_has_what_the_application_needs_in_the_tested_versions(supply_chain: Any) -> None:
    locked = supply_chain.locked()
    assert {name: version for name, (version, _) in locked.items()} == supply_chain.closure(
        supply_chain.required()
    )
    assert all(hashes for _, hashes in locked.values())
    text = supply_chain.LOCK.read_text()
    assert len(re.findall(r"^\S+==", text, re.MULTILINE)) == len(locked)
    assert "django" in locked
    assert "pytest" not in locked


def test_the_image_installs_nothing_without_a_hash() -> None:
    (install,) = re.findall(r"pip install .*", DOCKERFILE)
    assert "--require-hashes" in install
    assert "--only-binary=:all:" in install


def test_the_bill_of_materials_names_every_package_of_the_image(supply_chain: Any) -> None:
    done = subprocess.run(
        [sys.executable, "deploy/supply_chain.py", "sbom"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    components = {one["name"]: one for one in bill["components"]}
    assert set(components) == set(supply_chain.locked())
    assert components["django"]["purl"] == f"pkg:pypi/django@{components['django']['version']}"
    assert all(one["externalReferences"][0]["hashes"][0]["alg"] == "SHA-256" for one in components.values())
    assert len({one["bom-ref"] for one in components.values()}) == len(components)
    # nothing outside SPDX's grammar is claimed to be an expression
    for one in components.values():
        for given in one.get("licenses", ()):
            assert "expression" not in given or re.fullmatch(r"[A-Za-z0-9.()+ -]+", given["expression"])
