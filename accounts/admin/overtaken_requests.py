"""Repeat a request of the admin that another one overtook, by removing, adding or changing a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
from django.core.exceptions import ObjectDoesNotExist
from django.db import DatabaseError, IntegrityError
from django.http import HttpRequest

log = structlog.get_logger(__name__)


def is_overtaken(error: Exception) -> bool:
    """Return whether the error may be the effect of what others have saved since this request read its rows.

    A row does not exist or was not updated, or a constraint refuses a form that was valid.
    """
    is_not_updated = type(error) is DatabaseError  # by Django: "Save with update_fields did not affect any rows."
    return is_not_updated or isinstance(error, ObjectDoesNotExist | IntegrityError)


def repeat_if_overtaken(request: HttpRequest, view: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the response of a view that is one transaction. Run it again if another request overtook a POST.

    The second time it reads what is stored now, so the form names the problem and keeps what was entered, or the
    response is that of a row that does not exist. Raises what the view raises then.
    """
    try:
        return view(request, *args, **kwargs)
    except (ObjectDoesNotExist, DatabaseError) as error:
        if request.method != "POST" or not is_overtaken(error):
            raise
        log.warning("admin_request_overtaken", path=request.path, error=str(error))
    for _, files in request.FILES.lists():
        for file in files:
            file.seek(0)
    return view(request, *args, **kwargs)
