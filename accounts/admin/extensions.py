"""Extend admin pages: a higher slice adds to the page of a lower slice's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.contrib import admin
from django.db import models

Extension = TypeVar("Extension", bound=type[admin.ModelAdmin])


def extend_admin(model: type[models.Model]) -> Callable[[Extension], Extension]:
    """Extend the registered admin page of `model` with the decorated class, a subclass of that page's class.

    Several slices may extend the same page; each extends the result of the previous ones. The page must already be
    registered, so import the lower slice's admin first.
    """

    def extend(extension: Extension) -> Extension:
        page = type(admin.site._registry[model])
        admin.site.unregister(model)
        admin.site.register(model, type(page.__name__, (extension, page), {"__module__": extension.__module__}))
        return extension

    return extend
