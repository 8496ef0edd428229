"""Declare for mypy the attributes that our middleware and authentication set on requests.

Used by mypy only (pyproject.toml).
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.nodes import MDEF, SymbolTableNode, Var
from mypy.plugin import ClassDefContext, Plugin
from mypy.types import AnyType, TypeOfAny

REQUESTS = ("django.http.request.HttpRequest", "rest_framework.request.Request")
ATTRIBUTES = (
    "organization", "membership", "role", "actor", "rate_headers", "has_token", "shown_once", "second_factor_step",
    "language",
)  # fmt: skip


class RequestAttributes(Plugin):
    """Type `request.organization` and the related attributes as Any."""

    def get_customize_class_mro_hook(self, fullname: str) -> Callable[[ClassDefContext], None] | None:
        return _add_attributes if fullname in REQUESTS else None


def _add_attributes(context: ClassDefContext) -> None:
    info = context.cls.info
    for name in ATTRIBUTES:
        if name not in info.names:
            attribute = Var(name, AnyType(TypeOfAny.explicit))
            attribute.info, attribute._fullname = info, f"{info.fullname}.{name}"
            attribute.is_initialized_in_class = True
            info.names[name] = SymbolTableNode(MDEF, attribute, plugin_generated=True)


def plugin(version: str) -> type[Plugin]:
    """Return the plugin class. Called by mypy."""
    return RequestAttributes
