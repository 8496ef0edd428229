"""Write what the image is made of: the locked requirements, and a software bill of materials.

    python deploy/supply_chain.py lock   # writes deploy/requirements.txt from pyproject.toml and constraints.txt
    python deploy/supply_chain.py sbom   # prints the same packages as CycloneDX 1.6, with licenses and hashes

The hashes are not in constraints.txt: a single hash there makes pip demand a hash and a pinned version of
everything that `make` installs, including the tools of contributors. Both commands read the dependencies of the
installed packages; `lock` gets the hashes of all files of each version from the package index.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version
from pip._internal.models.index import PyPI

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "deploy" / "requirements.txt"
EXTRAS = ("sqs", "activemq")
INDEX = PyPI.simple_url.rstrip("/")  # the package index that pip uses by default
HEADER = """\
# What the image installs, with the hash of every file: pip refuses anything else. Made by `make lock`.
"""
# The image's Python, where it differs from the one that runs this.
IMAGE = {"python_version": "3.12", "python_full_version": "3.12.0", "sys_platform": "linux"}


def required() -> list[Requirement]:
    """Return what pyproject.toml asks for in the image."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for name in EXTRAS for line in project["optional-dependencies"][name]]
    return [Requirement(line) for line in (*project["dependencies"], *extras)]


def pinned() -> dict[str, str]:
    """Return the version of each package in constraints.txt."""
    lines = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in lines}


def closure(wanted: list[Requirement]) -> dict[str, str]:
    """Return name → version of the packages and of everything that they depend on.

    The versions are those of constraints.txt. Raises KeyError for a package that is not in it.
    """
    versions = pinned()
    found: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    queue = [(requirement, extra) for requirement in wanted for extra in ("", *requirement.extras)]
    while queue:
        requirement, extra = queue.pop()
        name = canonicalize_name(requirement.name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found[name] = versions[name]
        for line in distribution(name).requires or ():
            inner = Requirement(line)
            if inner.marker is None or inner.marker.evaluate({**IMAGE, "extra": extra}):
                queue += [(inner, one) for one in ("", *inner.extras)]
    return dict(sorted(found.items()))


def hashes(package: tuple[str, str]) -> list[str]:
    """Return the SHA-256 of every file of one version, from the package index."""
    name, version = package
    with urllib.request.urlopen(f"{INDEX}/{name}/", timeout=60) as answer:  # noqa: S310  (a fixed https address)
        page = answer.read().decode()
    found = set()
    for file, digest in re.findall(r'href="[^"#]*/([^"/#]+)#sha256=([0-9a-f]{64})', page):
        try:
            parse = parse_wheel_filename if file.endswith(".whl") else parse_sdist_filename
            parsed = parse(file)
        except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion):  # formats and versions of the past
            continue
        if parsed[1] == Version(version):
            found.add(digest)
    if not found:
        raise LookupError(f"{INDEX} has no file of {name} {version}.")
    return sorted(found)


def lock() -> None:
    """Write deploy/requirements.txt."""
    packages = list(closure(required()).items())
    with ThreadPoolExecutor(8) as threads:
        digests = list(threads.map(hashes, packages))
    lines = [
        " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in found)])
        for (name, version), found in zip(packages, digests, strict=True)
    ]
    LOCK.write_text(HEADER + "\n".join(lines) + "\n")


def locked() -> dict[str, tuple[str, list[str]]]:
    """Return name → (version, hashes) of deploy/requirements.txt."""
    found = re.findall(r"^([a-z0-9-]+)==(\S+) \\\n((?:    --hash=\S+(?: \\)?\n)+)", LOCK.read_text(), re.MULTILINE)
    return {name: (version, re.findall(r"sha256:([0-9a-f]{64})", block)) for name, version, block in found}


def sbom() -> dict[str, Any]:
    """Return the bill of materials of what deploy/requirements.txt installs.

    Every package lists the hashes of all files of its version, of which an installation uses one.
    """
    components = []
    for name, (version, digests) in locked().items():
        metadata = distribution(name).metadata
        expression, text = metadata.get("License-Expression"), (metadata.get("License") or "").strip()
        purl = f"pkg:pypi/{quote(name)}@{quote(version)}"
        files = [
            {"type": "distribution", "url": f"{INDEX}/{name}/", "hashes": [{"alg": "SHA-256", "content": digest}]}
            for digest in digests
        ]
        component: dict[str, Any] = {
            "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
            "externalReferences": files,
        }  # fmt: skip
        if expression:
            component["licenses"] = [{"expression": expression}]
        elif text:
            component["licenses"] = [{"license": {"name": text.splitlines()[0][:100]}}]
        components.append(component)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": project["name"], "name": project["name"],
                "version": project["version"],
            },
        },
        "components": components,
    }  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:] == ["lock"]:
        lock()
    elif sys.argv[1:] == ["sbom"]:
        sys.stdout.write(json.dumps(sbom(), indent=2) + "\n")
    else:
        sys.exit("usage: supply_chain.py lock|sbom")
