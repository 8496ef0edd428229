"""Register the kinds of work that a schedule can do: the modules here and in SCHEDULE_KIND_MODULES.

Example:
    kind = kinds.get_kind("submission")
    kind.check(organization, payload)  # validates as that kind's own API does
    outcomes = kind.work(assignments, lease_check)  # in a worker
    kind.find(assignments)  # finds earlier results by the runs' idempotency keys

Each module defines `KIND`. To add a kind, add a module, its name in _MODULES, and a queue in the settings.
"""

from __future__ import annotations

from importlib import import_module

from django.conf import settings

from dispatch.schedules.kinds.base import Kind

_MODULES = ("submission", "lead", "message", "http")
_known: dict[str, Kind] = {}


def load_kinds() -> None:
    """Register the kinds. Called from AppConfig.ready()."""
    for name in _MODULES:
        register(import_module(f"{__name__}.{name}").KIND)
    for module in settings.SCHEDULE_KIND_MODULES.values():
        register(import_module(module).KIND)


def register(kind: Kind) -> None:
    """Register a kind under its name; a later registration replaces an earlier one."""
    _known[kind.name] = kind


def is_known(name: str) -> bool:
    """Return whether this process has a kind with this name."""
    return name in _known


def get_kind(name: str) -> Kind:
    """Return the kind with this name. Raises KeyError if there is none."""
    return _known[name]


def all_kinds() -> list[Kind]:
    """Return all kinds in registration order."""
    return list(_known.values())
