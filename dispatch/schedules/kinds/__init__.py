"""The kinds of work that a schedule can do: what is a module here, and what SCHEDULE_KIND_MODULES names.

    kind = kinds.get("submission")
    payload = kind.check(organization, payload)      # as that kind's own API would
    outcomes = kind.work(assignments, deadline)      # in a worker
    kind.find(assignments)                           # what was created already, by the run's idempotency key

A module of a kind has `KIND`. A new one is a module, its name in _MODULES, and a queue in the settings."""

from __future__ import annotations

from importlib import import_module

from django.conf import settings

from dispatch.schedules.kinds.base import Kind

_MODULES = ("submission", "lead", "message", "http")
_known: dict[str, Kind] = {}


def load() -> None:
    """Called from AppConfig.ready()."""
    for name in _MODULES:
        register(import_module(f"{__name__}.{name}").KIND)
    for module in settings.SCHEDULE_KIND_MODULES.values():
        register(import_module(module).KIND)


def register(kind: Kind) -> None:
    _known[kind.name] = kind


def is_known(name: str) -> bool:
    return name in _known


def get(name: str) -> Kind:
    """The kind of that name. Raises KeyError."""
    return _known[name]


def all_kinds() -> list[Kind]:
    """Every kind, in the order in which they were registered."""
    return list(_known.values())
