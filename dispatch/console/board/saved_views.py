"""The menu of the board's views: its layout and columns, and the saved views of a person and an organization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import BadRequest, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from accounts.models import SavedView
from accounts.saved_views import services
from accounts.tenancy import user_of
from dispatch.console import views_base
from dispatch.console.board.cards import COLUMNS
from dispatch.console.board.display import LAYOUTS, Display, describe_address, normalize
from dispatch.console.views_base import console_view
from dispatch.core.languages import gettext as _

# The board's address with no filters. Without any parameter, the board opens with the person's default view.
ALL = {"view": "all"}


def open_with(request: HttpRequest) -> str:
    """Return the address with which the person's board opens, or "" without a default view."""
    view = services.default_view(request.organization, user_of(request))
    return _address_of(view.query) if view is not None and view.query else ""


def build_menu(request: HttpRequest, query: QueryDict, **more: Any) -> dict[str, Any]:
    """Return the menu's context for a board with this query. `more`: what was entered, and the error."""
    user = user_of(request)
    kept = describe_address(query)
    now, display = urlencode(kept), Display.of(query)
    default = services.default_view(request.organization, user)
    views: list[dict[str, Any]] = [
        {
            "view": view,
            "address": _address_of(view.query),
            "is_current": view.query == now,
            "is_default": default is not None and view.pk == default.pk,
            "may_change": services.may_change(view, user, request.role),
        }
        for view in services.visible_views(request.organization, user)
    ]
    return {
        "own_views": [one for one in views if not one["view"].is_shared],
        "shared_views": [one for one in views if one["view"].is_shared],
        "has_default": default is not None,
        "current_view": next((one["view"].name for one in views if one["is_current"]), ""),
        "view_query": now,
        "layouts": [
            (_(words), _address_with(kept, layout=layout), layout == display.layout)
            for layout, words in LAYOUTS.items()
        ],
        "column_choices": [_column_choice(kept, display, name, _(words[0])) for name, words in COLUMNS.items()],
        "all_jobs": f"{reverse('console:board')}?{urlencode(ALL)}",
        **more,
    }


@require_http_methods(["GET", "POST"])
@console_view
def show_menu(request: HttpRequest) -> HttpResponse:
    """Render the menu for the page that asks; on POST, save its view under `name` first, `shared` or not."""
    query = _query_of_page(request)
    if request.method != "POST":
        return _render_menu(request, query) if views_base.is_fragment(request) else _to_board("")
    name, is_shared = request.POST.get("name", ""), bool(request.POST.get("shared"))
    try:
        view = services.save_view(
            request.organization, user_of(request), request.role, name, normalize(query), is_shared=is_shared
        )
    except ValidationError as error:
        return _refuse(request, query, error, entered_name=name, entered_shared=is_shared)
    return _answer(
        request,
        query,
        (_("View “{name}” shared.") if is_shared else _("View “{name}” saved.")).format(name=view.name),
    )


@require_POST
@console_view
def change_view(request: HttpRequest, view_id: int) -> HttpResponse:
    """Change a view. `do`: rename (to `name`), share, delete, default, or no_default."""
    query, do = _query_of_page(request), request.POST.get("do", "")
    organization, user, role = request.organization, user_of(request), request.role
    try:
        match do:
            case "rename":
                view = services.rename_view(organization, view_id, user, role, request.POST.get("name", ""))
                done = _("View renamed to “{name}”.").format(name=view.name)
            case "share":
                view = services.share_view(organization, view_id, user, role)
                done = _("Everyone in your organization can use “{name}” now.").format(name=view.name)
            case "delete":
                done = _("View “{name}” deleted.").format(
                    name=services.delete_view(organization, view_id, user, role)
                )
            case "default":
                chosen = services.choose_default(organization, user, view_id)
                done = _("Your board opens with “{name}”.").format(name=chosen)
            case "no_default":
                services.choose_default(organization, user, None)
                done = _("Your board opens with all jobs.")
            case _:
                raise BadRequest("Unknown action.")
    except SavedView.DoesNotExist:
        raise Http404 from None
    except ValidationError as error:
        return _refuse(request, query, error, refused_view=view_id, open_view=view_id)
    return _answer(request, query, done, open_view=view_id)


def _query_of_page(request: HttpRequest) -> str:
    """Return the query of the board that the person sees: htmx names its address, other forms carry it."""
    if views_base.is_fragment(request):
        return request.headers.get("HX-Current-URL", "")[:4000].partition("?")[2].partition("#")[0]
    return request.POST.get("query", "")[:4000]


def _refuse(request: HttpRequest, query: str, error: ValidationError, **more: Any) -> HttpResponse:
    words = " ".join(error.messages)
    if views_base.is_fragment(request):
        return _render_menu(request, query, status=422, view_error=words, **more)
    messages.error(request, words)
    return _to_board(query)


def _answer(request: HttpRequest, query: str, done: str, **more: Any) -> HttpResponse:
    if views_base.is_fragment(request):
        return views_base.with_note(_render_menu(request, query, **more), done)
    messages.success(request, done)
    return _to_board(query)


def _render_menu(request: HttpRequest, query: str, *, status: int = 200, **more: Any) -> HttpResponse:
    context = build_menu(request, QueryDict(query), **more)
    return views_base.render_fragment(request, "console/board/_views_menu.html", context, status=status)


def _to_board(query: str) -> HttpResponse:
    return HttpResponseRedirect(_address_of(normalize(query)))


def _address_of(query: str) -> str:
    return f"{reverse('console:board')}?{query or urlencode(ALL)}"


def _address_with(kept: Mapping[str, Any], **changed: str) -> str:
    query = {name: value for name, value in {**kept, **changed}.items() if value}
    return _address_of(urlencode(query))


def _column_choice(kept: Mapping[str, Any], display: Display, name: str, title: str) -> tuple[str, str, bool]:
    """Return a column's title, the address that shows or hides it ("": the last one), and whether it is shown."""
    is_shown = name in display.shown
    shown = [one for one in COLUMNS if (one in display.shown) != (one == name)]
    columns = "" if len(shown) == len(COLUMNS) else ",".join(shown)
    return title, _address_with(kept, columns=columns) if shown else "", is_shown
