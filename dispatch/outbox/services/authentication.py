"""Check how an endpoint authenticates Dispatch to its receiver: OAuth client credentials and mutual TLS.

A credential that is not given is kept, unless its counterpart changes: a new token URL needs the client secret
again, and a new certificate its key, so that neither reaches another server unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q

from dispatch.core import clock, events
from dispatch.core.http.client_certificates import InvalidCertificate, check_certificate
from dispatch.core.http.ssrf import check_target_url, check_url, parse_literal, parse_networks
from dispatch.core.languages import gettext as _
from dispatch.outbox.models import Endpoint

OAUTH_FIELDS = (
    "oauth_token_url", "oauth_client_id", "oauth_client_secret", "oauth_scope", "oauth_audience",
    "oauth_client_auth",
)  # fmt: skip
FIELDS = (*OAUTH_FIELDS, "client_certificate", "client_key")
# Admins are warned this many days before a certificate expires, and when it has expired.
WARNING_DAYS = (30, 7, 1, 0)


def complete_changes(endpoint: Endpoint | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes together with those that follow from them. Raises ValidationError by field.

    Without a token URL, all OAuth settings are removed; without a certificate, its key.
    """
    changed = dict(changes)
    for name in {"client_certificate", "client_key"} & set(changed):
        changed[name] = str(changed[name]).replace("\r\n", "\n").strip()
    if errors := _complete_oauth(endpoint, changed) | _complete_certificate(endpoint, changed):
        raise ValidationError(errors)
    return changed


def check_token_url(url: str) -> None:
    """Accept an https URL, or http to an address in HTTP_ALLOWED_NETWORKS. Raises ValidationError."""
    if not url:
        return
    check_target_url(url)
    if url.lower().startswith("https://"):
        return
    address = parse_literal(check_url(url, settings.HTTP_ALLOWED_PORTS).raw_host or "")
    allowed = parse_networks(tuple(settings.HTTP_ALLOWED_NETWORKS))
    if address is None or not any(address in network for network in allowed if network.version == address.version):
        raise ValidationError(
            _("The token URL must use https, because it gets the client secret."), code="insecure"
        )


def warn_about_certificates() -> int:
    """Append `endpoint.certificate_expiring` for certificates that end soon; return for how many.

    One event per certificate and entry of WARNING_DAYS, so that Admins are notified each time.
    """
    now, count = clock.now(), 0
    soon = Endpoint.objects.filter(client_certificate_until__lte=now + timedelta(days=WARNING_DAYS[0]))
    unwarned = Q(certificate_warned_days__isnull=True) | Q(certificate_warned_days__gt=0)
    for endpoint in soon.filter(unwarned).defer(*Endpoint.CREDENTIALS).order_by("pk")[:1000]:
        until = endpoint.client_certificate_until
        assert until is not None
        stage = min(days for days in WARNING_DAYS if until - now <= timedelta(days=days))
        warned = endpoint.certificate_warned_days
        if warned is not None and warned <= stage:
            continue
        count += _warn(endpoint, stage)
    return count


def _warn(endpoint: Endpoint, stage: int) -> int:
    """Append the event, unless another process did or the certificate was replaced; return whether it did."""
    until = endpoint.client_certificate_until
    with transaction.atomic():
        same = Endpoint.objects.filter(
            pk=endpoint.pk,
            client_certificate_until=until,
            certificate_warned_days=endpoint.certificate_warned_days,
        )
        if not same.update(certificate_warned_days=stage):
            return 0
        assert until is not None
        verb = "expired on" if until <= clock.now() else "expires on"
        events.append(
            endpoint.organization_id,
            "endpoint.certificate_expiring",
            endpoint.pk,
            name=endpoint.name,
            until=until.isoformat(),
            until_text=f"It {verb} {until:%Y-%m-%d %H:%M} UTC.",
            days=stage,
        )
    return 1


def _complete_oauth(endpoint: Endpoint | None, changed: dict[str, Any]) -> dict[str, str]:
    """Complete the OAuth settings in place; return the errors by field."""
    if not _value(endpoint, changed, "oauth_token_url"):
        given = [name for name in ("oauth_client_id", "oauth_client_secret") if changed.get(name)]
        if given and not (endpoint and endpoint.oauth_token_url):
            return {"oauth_token_url": _("Enter the token URL, too.")}
        if endpoint and endpoint.oauth_token_url:
            auth = Endpoint.ClientAuth.BASIC
            changed |= {**dict.fromkeys(OAUTH_FIELDS, ""), "oauth_client_auth": auth}
        return {}
    errors = {}
    if not _value(endpoint, changed, "oauth_client_id"):
        errors["oauth_client_id"] = _("Enter the client ID.")
    before = endpoint.oauth_token_url if endpoint else ""
    is_moved = bool(before) and changed.get("oauth_token_url", before) != before
    if not (changed.get("oauth_client_secret") if is_moved else _value(endpoint, changed, "oauth_client_secret")):
        errors["oauth_client_secret"] = (
            _("Enter the client secret for this token URL.") if is_moved else _("Enter the client secret.")
        )
    if any(str(name).lower() == "authorization" for name in _value(endpoint, changed, "headers") or {}):
        text = _("The endpoint has an Authorization header. Remove it, or leave this empty.")
        errors |= {"oauth_token_url": text}
    return errors


def _complete_certificate(endpoint: Endpoint | None, changed: dict[str, Any]) -> dict[str, str]:
    """Complete the certificate's settings in place; return the errors by field."""
    certificate = _value(endpoint, changed, "client_certificate")
    if not certificate:
        if changed.get("client_key"):
            return {"client_certificate": "Enter the certificate of this key."}
        if endpoint and endpoint.client_certificate:
            changed |= {"client_key": "", "client_certificate_until": None, "certificate_warned_days": None}
        return {}
    if not str(_value(endpoint, changed, "url")).lower().startswith("https://"):
        return {"client_certificate": "A client certificate needs an https URL."}
    is_new = endpoint is None or certificate != endpoint.client_certificate or bool(changed.get("client_key"))
    if not is_new:
        return {}
    if not (key := changed.get("client_key")):
        return {"client_key": "Enter the private key of this certificate."}
    try:
        until = check_certificate(certificate, key, clock.now())
    except InvalidCertificate as error:
        return {"client_key" if error.is_key else "client_certificate": str(error)}
    changed |= {"client_certificate_until": until, "certificate_warned_days": None}
    return {}


def _value(endpoint: Endpoint | None, changed: Mapping[str, Any], name: str) -> Any:
    """Return the value after the changes."""
    return changed.get(name, getattr(endpoint, name) if endpoint else "")
