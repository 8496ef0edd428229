"""The kinds of channels, and what people enter for each.

This is the list of what may be used. Nobody enters a URL of Apprise: its other schemes run programs of this
machine, read its files or reach its desktop. Entered values become the `config` of an AlertChannel, which only
`channels.chat` reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError

from dispatch.core.http.ssrf import check_target_url
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from notifications.models import AlertChannel

Kind = AlertChannel.Kind
Config = dict[str, Any]
MAX_ENTERED = 1000

_SLACK = re.compile(
    r"https://hooks\.slack\.com/services/(T[A-Z0-9]{1,20})/(B[A-Z0-9]{1,20})/([A-Za-z0-9]{1,64})/?"
)
_TEAMS_HOST = re.compile(
    r"[a-z0-9-]+(\.[a-z0-9-]+)*\.(logic\.azure\.(com|us|cn)|environment\.api\.powerplatform\.com)"
)
_TEAMS_PATH = re.compile(
    r"(?P<automate>/powerautomate/automations/direct(?:/cu/(?P<route>[0-9]{1,20}))?)?"
    r"/workflows/(?P<workflow>[A-Za-z0-9_-]{1,128})/triggers/manual/paths/invoke/?"
)
_GOOGLE_PATH = re.compile(r"/v1/spaces/([A-Za-z0-9_-]{1,64})/messages/?")
_TOKEN = re.compile(r"[A-Za-z0-9_.~+/=:-]{1,300}")
_TELEGRAM_TOKEN = re.compile(r"[0-9]{3,20}:[A-Za-z0-9_-]{10,100}")
_TELEGRAM_CHAT = re.compile(r"-?[0-9]{1,20}")
_MATRIX_ROOM = re.compile(r"![A-Za-z0-9._~=+-]{1,120}(:[A-Za-z0-9.:\[\]-]{1,120})?")
_NTFY_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class EntryField:
    """One field of a kind's form. `is_secret`: it is entered like a password."""

    name: str
    label: str
    help: str = ""
    more_help: str = ""
    is_secret: bool = False
    is_required: bool = True
    initial: str = ""


@dataclass(frozen=True)
class ChannelKind:
    """What people enter for a kind. `read` returns the config and the address without secrets.

    `read` raises ValidationError by field.
    """

    value: str
    label: str
    fields: tuple[EntryField, ...]
    read: Callable[[Mapping[str, str]], tuple[Config, str]]


def read_entered(kind: str, entered: Mapping[str, str]) -> tuple[Config, str]:
    """Return the config of a new channel and its address without secrets. Raises ValidationError by field."""
    chosen = offered_kinds().get(kind)
    if chosen is None:
        raise ValidationError({"kind": _("Choose one of the services in the list.")})
    values = {field.name: entered.get(field.name, "").strip() for field in chosen.fields}
    for field in chosen.fields:
        if field.is_required and not values[field.name]:
            raise ValidationError({field.name: _("Enter a value.")})
        if len(values[field.name]) > MAX_ENTERED:
            raise ValidationError({field.name: _("Must be at most {most} characters.").format(most=MAX_ENTERED)})
    return chosen.read(values)


def offered_kinds() -> dict[str, ChannelKind]:
    """Return the kinds that this installation allows (ALERT_CHANNEL_KINDS), by their values."""
    return {kind.value: kind for kind in KINDS if kind.value in settings.ALERT_CHANNEL_KINDS}


def _refuse(field: str, message: str) -> ValidationError:
    return ValidationError({field: message})


def _read_slack(entered: Mapping[str, str]) -> tuple[Config, str]:
    match = _SLACK.fullmatch(entered["url"])
    if match is None:
        raise _refuse("url", _("Must look like https://hooks.slack.com/services/T…/B…/…"))
    return {"tokens": list(match.groups())}, "hooks.slack.com"


def _read_teams(entered: Mapping[str, str]) -> tuple[Config, str]:
    parts = _split(entered["url"], "url")
    path, query = _TEAMS_PATH.fullmatch(parts.path), parse_qs(parts.query)
    host, signature = parts.hostname or "", (query.get("sig") or [""])[0]
    is_host = parts.scheme == "https" and parts.port in (None, 443) and _TEAMS_HOST.fullmatch(host)
    if not is_host or path is None or not re.fullmatch(r"[A-Za-z0-9_-]{1,200}", signature):
        raise _refuse(
            "url",
            _(
                "Must be the URL of a workflow: https://….logic.azure.com/workflows/…/triggers/manual/paths/invoke?…"
            ),
        )
    config = {
        "host": host,
        "workflow": path["workflow"],
        "signature": signature,
        "is_automate": bool(path["automate"]),
        "route": path["route"],
    }
    return config, host


def _read_google_chat(entered: Mapping[str, str]) -> tuple[Config, str]:
    parts = _split(entered["url"], "url")
    path, query = _GOOGLE_PATH.fullmatch(parts.path), parse_qs(parts.query)
    key, token = (query.get("key") or [""])[0], (query.get("token") or [""])[0]
    is_host = parts.scheme == "https" and parts.netloc == "chat.googleapis.com"
    if not is_host or path is None or not (_TOKEN.fullmatch(key) and _TOKEN.fullmatch(token)):
        raise _refuse("url", _("Must look like https://chat.googleapis.com/v1/spaces/…/messages?key=…&token=…"))
    return {"space": path[1], "key": key, "token": token}, f"chat.googleapis.com, space {path[1]}"


def _read_telegram(entered: Mapping[str, str]) -> tuple[Config, str]:
    token, chat = entered["token"].removeprefix("bot"), entered["chat"]
    if not _TELEGRAM_TOKEN.fullmatch(token):
        raise _refuse("token", _("Must look like 123456789:AAE…, as @BotFather shows it."))
    if not _TELEGRAM_CHAT.fullmatch(chat):
        raise _refuse("chat", _("Must be the number of a chat, such as 123456789 or -1001234567890."))
    return {"token": token, "chat": chat}, f"Telegram chat {chat}"


def _read_matrix(entered: Mapping[str, str]) -> tuple[Config, str]:
    base, host = _read_server(entered["server"])
    if not _TOKEN.fullmatch(entered["token"]):
        raise _refuse("token", _("Must be an access token without spaces."))
    if not _MATRIX_ROOM.fullmatch(entered["room"]):
        raise _refuse("room", _("Must be the internal ID of a room, such as !AbCdEf:example.org."))
    return {"base": base, "token": entered["token"], "room": entered["room"]}, f"{host}, room {entered['room']}"[
        :120
    ]


def _read_ntfy(entered: Mapping[str, str]) -> tuple[Config, str]:
    base, host = _read_server(entered["server"])
    if not _NTFY_TOPIC.fullmatch(entered["topic"]):
        raise _refuse("topic", _("Must have 1 to 64 letters, digits, hyphens or underscores."))
    if entered["token"] and not _TOKEN.fullmatch(entered["token"]):
        raise _refuse("token", _("Must be an access token without spaces."))
    return {"base": base, "topic": entered["topic"], "token": entered["token"]}, host


def _read_webhook(entered: Mapping[str, str]) -> tuple[Config, str]:
    parts = _checked_url(entered["url"], "url")
    if entered["token"] and not _TOKEN.fullmatch(entered["token"]):
        raise _refuse("token", _("Must be a token without spaces."))
    return {"url": entered["url"].partition("#")[0], "token": entered["token"]}, str(parts.netloc)[:120]


def _read_server(url: str) -> tuple[str, str]:
    """Return the server's URL without a path, and its host."""
    parts = _checked_url(url, "server")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise _refuse(
            "server", _("Must be the server's address without a path, such as https://ntfy.example.org.")
        )
    return f"{parts.scheme}://{parts.netloc}", parts.netloc[:120]


def _checked_url(url: str, field: str) -> Any:
    """Return the parts of a URL that the HTTP client may call. Names are resolved and checked at every call."""
    try:
        check_target_url(url)
    except ValidationError as error:
        raise _refuse(field, " ".join(error.messages)) from None
    return _split(url, field)


def _split(url: str, field: str) -> Any:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (it raises for a port that is no number)
    except ValueError:
        raise _refuse(field, _("Must be a URL.")) from None
    return parts


_URL_HELP = mark("It contains a secret, so it is stored encrypted and not shown again.")
_TOKEN_HELP = mark("Stored encrypted and not shown again.")
KINDS: tuple[ChannelKind, ...] = (
    ChannelKind(
        Kind.SLACK,
        Kind.SLACK.label,
        (
            EntryField(
                "url",
                mark("Webhook URL"),
                mark("From Incoming Webhooks of a Slack app."),
                _URL_HELP,
                is_secret=True,
            ),
        ),
        _read_slack,
    ),
    ChannelKind(
        Kind.TEAMS,
        Kind.TEAMS.label,
        (
            EntryField(
                "url",
                mark("Workflow URL"),
                mark("From the trigger “When a Teams webhook request is received”."),
                _URL_HELP,
                is_secret=True,
            ),
        ),
        _read_teams,
    ),
    ChannelKind(
        Kind.GOOGLE_CHAT,
        Kind.GOOGLE_CHAT.label,
        (
            EntryField(
                "url",
                mark("Webhook URL"),
                mark("From Apps & integrations of the space."),
                _URL_HELP,
                is_secret=True,
            ),
        ),
        _read_google_chat,
    ),
    ChannelKind(
        Kind.TELEGRAM,
        Kind.TELEGRAM.label,
        (
            EntryField("token", mark("Bot token"), mark("From @BotFather."), _TOKEN_HELP, is_secret=True),
            EntryField(
                "chat",
                mark("Chat ID"),
                mark("A number such as 123456789. First send the bot a message, or add it to the group."),
            ),
        ),
        _read_telegram,
    ),
    ChannelKind(
        Kind.MATRIX,
        Kind.MATRIX.label,
        (
            EntryField("server", mark("Homeserver"), initial="https://matrix.org"),
            EntryField(
                "token",
                mark("Access token"),
                mark("From an account that is in the room."),
                _TOKEN_HELP,
                is_secret=True,
            ),
            EntryField("room", mark("Room ID"), mark("From the room's settings, such as !AbCdEf:example.org.")),
        ),
        _read_matrix,
    ),
    ChannelKind(
        Kind.NTFY,
        Kind.NTFY.label,
        (
            EntryField("server", mark("Server"), initial="https://ntfy.sh"),
            EntryField(
                "topic", mark("Topic"), mark("Anyone who knows a public topic can read it."), is_secret=True
            ),
            EntryField(
                "token",
                mark("Access token"),
                mark("If the topic is protected."),
                _TOKEN_HELP,
                is_secret=True,
                is_required=False,
            ),
        ),
        _read_ntfy,
    ),
    ChannelKind(
        Kind.WEBHOOK,
        Kind.WEBHOOK.label,
        (
            EntryField("url", "URL", mark("Gets a POST with JSON."), _URL_HELP, is_secret=True),
            EntryField(
                "token",
                mark("Bearer token"),
                mark("If the receiver asks for one."),
                _TOKEN_HELP,
                is_secret=True,
                is_required=False,
            ),
        ),
        _read_webhook,
    ),
)
