"""The user's own chat channels: add, test and remove them. Nobody can for another user."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from accounts.tenancy import user_of
from dispatch.console import views_base
from dispatch.console.views_base import console_view
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from notifications.channels.kinds import EntryField, offered_kinds
from notifications.models import AlertChannel
from notifications.services import alert_links, chat_channels

NAME = EntryField("name", mark("Name"), mark("Such as “Night shift”."), is_required=False)


@require_http_methods(["GET", "POST"])
@console_view
def new_channel(request: HttpRequest, kind: str) -> HttpResponse:
    """Render the form of a kind; on POST, add the channel and send it a test message."""
    chosen = offered_kinds().get(kind)
    user = user_of(request)
    if chosen is None or not alert_links.is_recipient(request.organization.pk, user):
        raise Http404
    errors: dict[str, str] = {}
    if request.method == "POST":
        entered = {field.name: request.POST.get(field.name, "") for field in chosen.fields}
        try:
            row = chat_channels.add_channel(
                request.organization, user, kind, request.POST.get("name", ""), entered, actor=request.actor
            )
        except ValidationError as error:
            errors = {name: " ".join(texts) for name, texts in error.message_dict.items()}
        else:
            _test(request, row)
            return _back(request)
    rows = [
        # a secret that was entered is not sent back
        (field, request.POST.get(field.name, field.initial) if not field.is_secret else "", errors.get(field.name))
        for field in (NAME, *chosen.fields)
    ]
    context = {
        "current": "notifications", "tab": "choices", "kind": chosen, "rows": rows, "problem": errors.get("kind"),
    }  # fmt: skip
    return views_base.render_page(
        request, "console/notices/new_channel.html", context, status=422 if errors else 200
    )


@require_POST
@console_view
def test_channel(request: HttpRequest, channel_id: int) -> HttpResponse:
    """Send a test message to one of the user's channels."""
    _test(request, _own(request, channel_id))
    return _back(request)


@require_POST
@console_view
def remove_channel(request: HttpRequest, channel_id: int) -> HttpResponse:
    """Remove one of the user's channels."""
    row = _own(request, channel_id)
    chat_channels.remove_channel(row, actor=request.actor)
    messages.success(request, _("{name} was removed.").format(name=row.name))
    return _back(request)


@require_GET
@console_view
def list_channels(request: HttpRequest) -> HttpResponse:
    """Render the list, which asks for itself while a test message is on its way. A browser gets its page."""
    if not views_base.is_fragment(request):
        return _back(request)
    return views_base.render_fragment(request, "console/notices/_channel_list.html", channel_context(request))


def channel_context(request: HttpRequest) -> dict[str, object]:
    """Return what the list of channels shows."""
    states = chat_channels.channels_of(request.organization.pk, user_of(request))
    return {
        "channels": states,
        "is_testing": any(state.is_testing for state in states),
        "kinds": list(offered_kinds().values()) if len(states) < chat_channels.MAX_PER_PERSON else [],
    }


def _own(request: HttpRequest, channel_id: int) -> AlertChannel:
    own = (
        AlertChannel.objects.of(request.organization)
        .filter(user=user_of(request), removed_at=None)
        .defer("config")
    )
    row: AlertChannel = get_object_or_404(own, pk=channel_id)
    return row


def _test(request: HttpRequest, row: AlertChannel) -> None:
    try:
        chat_channels.send_test(row, user=user_of(request), actor=request.actor)
    except chat_channels.TestRefused as error:
        messages.warning(request, str(error))


def _back(request: HttpRequest) -> HttpResponse:
    return views_base.back_to(request, reverse("console:notification_choices") + "#channels")
