"""Send messages to chat services and webhooks.

Apprise speaks the protocols of all kinds but Matrix. Its Matrix plugin joins rooms, encrypts, waits for as long as
the server says, and numbers its transactions at random; here one PUT has the delivery's id as its transaction, so
that the server recognizes a repeated message.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any
from urllib.parse import quote, urlsplit

import structlog
from django.conf import settings

from dispatch.core.http.client import ForbiddenTarget, LookupDelayed, TargetError, TargetTimeout
from dispatch.core.stored_texts import mark_stored
from notifications.channels import failure_reasons, guarded_requests
from notifications.channels.failure_reasons import Failure, describe_status
from notifications.channels.guarded_requests import Exchange
from notifications.models import AlertChannel

log = structlog.get_logger(__name__)

Kind = AlertChannel.Kind
APP_NAME = "Dispatch"
# What chat services would read as links, mentions and formatting.
_PLAIN = str.maketrans({"<": "‹", ">": "›", "[": "(", "]": ")", "`": "'", "*": "·", "_": " ", "~": "-"})


@dataclass(frozen=True)
class ChatMessage:
    """What is sent. `key` is the same in every attempt. `acknowledge_url` is empty if nothing is to acknowledge.

    The labels name the two links in the recipient's language.
    """

    key: str
    title: str
    text: str
    link: str
    acknowledge_url: str = ""
    link_label: str = "Open"
    acknowledge_label: str = "Acknowledge"

    def body(self, *, is_plain: bool = True) -> str:
        """Return the text with both links, one a line."""
        text = self.text if is_plain else self.text.translate(_PLAIN)
        links = [(self.acknowledge_label, self.acknowledge_url), (self.link_label, self.link)]
        lines = [f"{label}: {url}" for label, url in links if url]
        return "\n".join(([text] if text else []) + lines)


TURNED_OFF = mark_stored("{service} is turned off in this installation")
TOO_SLOW = mark_stored("{service} did not answer within {seconds} s")
NOT_MADE = mark_stored("The message could not be made for {service}")


class NotTaken(Exception):
    """Raised if the service did not take the message."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def send(channel: AlertChannel, message: ChatMessage) -> None:
    """Send the message once, within ALERT_CHANNEL_TIMEOUT_S. Raises NotTaken."""
    kind, label = channel.kind, Kind(channel.kind).label
    if kind not in settings.ALERT_CHANNEL_KINDS:
        raise NotTaken(Failure(TURNED_OFF.format(service=label), is_permanent=True))
    config = channel.config
    exchange = Exchange(channel.organization_id, settings.ALERT_CHANNEL_TIMEOUT_S)
    try:
        with exchange:
            is_taken = _SENDERS[kind](config, message, exchange)
    except (TargetError, ForbiddenTarget):
        is_taken = False
    except Exception as error:  # its text may contain a secret, such as that of Apprise's for an invalid token
        log.error("chat_message_not_made", channel=channel.pk, error=type(error).__name__)
        is_taken = False
    if not is_taken:
        raise NotTaken(_describe(kind, label, exchange))


def _describe(kind: str, label: str, exchange: Exchange) -> Failure:
    error, response = exchange.error, exchange.response
    if response is not None:
        return describe_status(kind, label, response.status, response.headers)
    if isinstance(error, TargetTimeout):
        return Failure(
            TOO_SLOW.format(service=label, seconds=f"{settings.ALERT_CHANNEL_TIMEOUT_S:g}"), is_permanent=False
        )
    if isinstance(error, LookupDelayed):
        return Failure(failure_reasons.NOT_LOOKED_UP.format(service=label), is_permanent=False)
    if isinstance(error, TargetError):
        return Failure(failure_reasons.UNREACHABLE.format(service=label), is_permanent=False)
    if isinstance(error, ForbiddenTarget):
        return Failure(failure_reasons.FORBIDDEN.format(service=label, why=error), is_permanent=True)
    return Failure(NOT_MADE.format(service=label), is_permanent=True)


# --- Apprise -----------------------------------------------------------------------------------------------------
@cache
def load_plugin(name: str) -> ModuleType:
    """Return Apprise's module of this plugin, with its requests guarded. The first one takes a second."""
    logging.getLogger("apprise").disabled = True  # it would log addresses with their secrets
    plugin = importlib.import_module("apprise.plugins." + name)
    guarded_requests.install(plugin)
    return plugin


def _notify(plugin: Any, title: str, body: str, *, is_alert: bool, is_markdown: bool = False) -> bool:
    from apprise import NotifyFormat, NotifyType

    plugin.throttle = lambda *args, **options: None  # this process paces channels (services.chat_deliveries)
    is_taken: bool = plugin.notify(
        title=title,
        body=body,
        notify_type=NotifyType.WARNING if is_alert else NotifyType.INFO,
        body_format=NotifyFormat.MARKDOWN if is_markdown else NotifyFormat.TEXT,
    )
    return is_taken


def _options() -> dict[str, Any]:
    """Return what every plugin gets: our name, no images, and no file to keep anything in."""
    from apprise import AppriseAsset, PersistentStoreMode

    asset = AppriseAsset(
        app_id=APP_NAME, app_desc=APP_NAME, app_url="", image_url_mask="", image_url_logo="", theme=None,
        storage_mode=PersistentStoreMode.MEMORY, plugin_paths=[],
    )  # fmt: skip
    return {"asset": asset, "include_image": False}


def _send_slack(config: dict[str, Any], message: ChatMessage, exchange: Exchange) -> bool:
    first, second, third = config["tokens"]
    plugin = load_plugin("slack").NotifySlack(
        token_a=first, token_b=second, token_c=third, include_footer=False, **_options()
    )
    return _notify_plainly(plugin, message)


def _send_teams(config: dict[str, Any], message: ChatMessage, exchange: Exchange) -> bool:
    plugin = load_plugin("workflows").NotifyWorkflows(
        host=config["host"], workflow=config["workflow"], signature=config["signature"],
        power_automate=config["is_automate"], routing_id=config["route"], **_options(),
    )  # fmt: skip
    links = [(message.acknowledge_label, message.acknowledge_url), (message.link_label, message.link)]
    parts = [message.text.translate(_PLAIN), *(f"[{label}]({url})" for label, url in links if url)]
    title, body = message.title.translate(_PLAIN), "\n\n".join(part for part in parts if part)
    return _notify(plugin, title, body, is_alert=bool(message.acknowledge_url), is_markdown=True)


def _send_google_chat(config: dict[str, Any], message: ChatMessage, exchange: Exchange) -> bool:
    plugin = load_plugin("google_chat").NotifyGoogleChat(
        workspace=config["space"], webhook_key=config["key"], webhook_token=config["token"], **_options()
    )
    return _notify_plainly(plugin, message)


def _send_telegram(config: dict[str, Any], message: ChatMessage, exchange: Exchange) -> bool:
    plugin = load_plugin("telegram").NotifyTelegram(
        bot_token=config["token"], targets=[config["chat"]], detect_owner=False, **_options()
    )
    return _notify_plainly(plugin, message)


def _send_ntfy(config: dict[str, Any], message: ChatMessage, exchange: Exchange) -> bool:
    plugin = load_plugin("ntfy").NotifyNtfy(
        mode="private", targets=[config["topic"]], auth="token", token=config["token"] or None,
        priority="high" if message.acknowledge_url else None, click=message.acknowledge_url or message.link,
        **_server(config["base"]), **_options(),
    )  # fmt: skip
    return _notify(plugin, message.title, message.body(), is_alert=bool(message.acknowledge_url))


def _send_webhook(config: dict[str, Any], message: ChatMessage, exchange: Exchange) -> bool:
    parts = urlsplit(config["url"])
    exchange.headers = {"Idempotency-Key": message.key}
    if config["token"]:
        exchange.headers["Authorization"] = f"Bearer {config['token']}"
    plugin = load_plugin("custom_json").NotifyJSON(
        fullpath=(parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        payload={"id": message.key, "link": message.link, "acknowledge": message.acknowledge_url},
        **_server(config["url"]), **_options(),
    )  # fmt: skip
    return _notify(plugin, message.title, message.text or message.title, is_alert=bool(message.acknowledge_url))


def _server(url: str) -> dict[str, Any]:
    """Return the scheme, host and port of a URL as the plugins take them."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition(":")[0] if parts.port else parts.netloc
    return {"secure": parts.scheme == "https", "host": host, "port": parts.port}


def _notify_plainly(plugin: Any, message: ChatMessage) -> bool:
    title, is_alert = message.title.translate(_PLAIN), bool(message.acknowledge_url)
    return _notify(plugin, title, message.body(is_plain=False), is_alert=is_alert)


# --- Matrix ------------------------------------------------------------------------------------------------------
def _send_matrix(config: dict[str, Any], message: ChatMessage, exchange: Exchange) -> bool:
    room, key = quote(config["room"], safe=""), quote(message.key, safe="")
    content = {
        "msgtype": "m.text",
        "body": f"{message.title.translate(_PLAIN)}\n{message.body(is_plain=False)}",
        "m.mentions": {},  # "@room" in the text of a customer rings nobody
    }
    headers = {"Authorization": f"Bearer {config['token']}", "Content-Type": "application/json"}
    url = f"{config['base']}/_matrix/client/v3/rooms/{room}/send/m.room.message/{key}"
    response = exchange.send("PUT", url, json.dumps(content).encode(), headers)
    return response.status == 200 and b"event_id" in response.body_start


_SENDERS: dict[str, Callable[[dict[str, Any], ChatMessage, Exchange], bool]] = {
    Kind.SLACK: _send_slack,
    Kind.TEAMS: _send_teams,
    Kind.GOOGLE_CHAT: _send_google_chat,
    Kind.TELEGRAM: _send_telegram,
    Kind.MATRIX: _send_matrix,
    Kind.NTFY: _send_ntfy,
    Kind.WEBHOOK: _send_webhook,
}
