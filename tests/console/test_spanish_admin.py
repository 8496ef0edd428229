"""The admin in Spanish: every word of its pages is a Spanish one, or belongs to the rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.db.models import Model
from django.urls import reverse

from accounts.models import IdentityProvider, User
from dispatch.core.models import Event
from dispatch.jobs.models import DispatchPolicy
from dispatch.technicians.models import Skill, Technician
from tests.accounts.test_admin_walk import (
    AFTER_THE_CHOICE,
    SUPERUSERS_ONLY,
    _management,
    _pages_of_a_row,
    _posted,
    _unfold_actions,
    signed_in,
    with_team_channel,
)
from tests.console.test_spanish_pages import HIDDEN, Reader, texts_of
from tests.support import factories as make
from tests.support.tenants import FOREIGN, Tenant
from tests.translations import NUL, read_catalog

pytestmark = pytest.mark.django_db

MODELS = sorted(admin.site._registry, key=lambda model: model._meta.label)
WORD = re.compile(r"[^\W\d_]{3,}")
# Names of the machinery, addresses and examples.
CODE = re.compile(
    r"https?://\S+|\S*\w[._@/:=-]\w\S*|<[^>]+>|\{[^}]*\}|%\(\w+\)s|\"[^\"]*\"|“[^”]*”|\b[A-Z]{2,}\w*\b|\bv\d\S*"
)
# Names that no translation contains.
KINDS = json.loads(Path("dispatch/outbox/event_types.json").read_text())
NAMES = {"root", *(word for kind in KINDS for word in WORD.findall(kind.partition(".")[0]))}


def vocabulary() -> set[str]:
    """Return the words of all Spanish translations, without code in them."""
    framework = Path(django.__file__).parent
    catalogs = [
        Path("dispatch/locale/es/LC_MESSAGES/django.po"),
        *(
            framework / place / "locale/es/LC_MESSAGES/django.po"
            for place in ("contrib/admin", "contrib/auth", "conf")
        ),
    ]
    texts = (text for path in catalogs for text in read_catalog(path).values())
    plain = (re.sub(r"\{[^}]*\}|%\(\w+\)s", " ", text.replace(NUL, " ")) for text in texts)
    return {word.lower() for text in plain for word in WORD.findall(CODE.sub(" ", text))}


class PageReader(Reader):
    """Collect the texts of a page without the names of its icons, and without what its rows contain in English."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        given = dict(attrs)
        is_english = (given.get("lang") or "").startswith("en") and tag != "html"
        if tag not in HIDDEN and ("material-symbols-outlined" in (given.get("class") or "") or is_english):
            self.hidden.append(tag)


def paths_of(model: type[Model], row: Model | None) -> Iterator[str]:
    name = f"{model._meta.app_label}_{model._meta.model_name}"
    yield reverse(f"admin:{name}_changelist")
    yield reverse(f"admin:{name}_add") + AFTER_THE_CHOICE.get(model._meta.label_lower, "")
    if row is None:
        return
    yield reverse(f"admin:{name}_change", args=[row.pk])
    if model in (Skill, Technician):
        yield from (reverse(f"admin:{name}_{page}", args=[row.pk]) for page in ("history", "delete"))
    yield from dialogs_of(model, row)
    for page, more in _pages_of_a_row(model):
        if not page.endswith(("_change", "_history", "_delete")):
            yield reverse(f"admin:{page}", kwargs={"object_id": row.pk, **more})


def dialogs_of(model: type[Model], row: Model) -> list[str]:
    return [reverse(f"admin:{action}", args=[row.pk]) for action in _unfold_actions(model)]


def words_of(rows: list[Model]) -> set[str]:
    """Return the words that the rows contain."""
    values = (str(field.value_from_object(row)) for row in rows for field in row._meta.concrete_fields)
    return {word.lower() for value in values for word in WORD.findall(value)}


def test_every_page_of_the_admin_is_in_spanish(ours: Tenant, settings: Any):
    settings.SECOND_FACTOR_FOR_SUPERUSERS = False
    with_team_channel(ours)
    rows = {model: ours.row(model) for model in MODELS if model._meta.label_lower not in SUPERUSERS_ONLY}
    known = vocabulary() | words_of([*rows.values(), *ours.rows.values(), ours.admin, ours.dispatcher]) | NAMES
    root = make.user("Root", is_superuser=True)
    User.objects.filter(pk=root.pk).update(language="es")
    client = signed_in(root)
    dialogs = {path for model, row in rows.items() for path in dialogs_of(model, row)}
    seen, found = set[str](), dict[str, str]()
    for path in ["/admin/", *(path for model in MODELS for path in paths_of(model, rows.get(model)))]:
        answer = client.get(path, headers={"HX-Request": "true"} if path in dialogs else {})
        assert answer.status_code in (200, 302, 403), path
        reader = PageReader()
        reader.feed(answer.content.decode())
        found |= {text: path for text in set(reader.texts) - seen if is_english(text, known)}
        seen |= set(reader.texts)
    assert found == {}


def is_english(text: str, known: set[str]) -> bool:
    """Return whether a text has words that are neither Spanish nor known otherwise."""
    if FOREIGN.lower() in text.lower():
        return False
    return any(word.lower() not in known for word in WORD.findall(CODE.sub(" ", text)))


def test_names_are_stored_in_english_and_histories_are_in_spanish(ours: Tenant):
    policy = ours.row(DispatchPolicy)
    User.objects.filter(pk=ours.admin.pk).update(language="es")
    client = signed_in(ours.admin)
    address = reverse("admin:jobs_dispatchpolicy_change", args=[policy.pk])
    shown = client.get(address)
    entered = {**_management(shown), **_posted(shown.context["adminform"].form), "rounds": "3"}
    assert client.post(address, entered).status_code == 302
    event = Event.objects.filter(subject_type="policy", subject_id=policy.pk).latest("id")
    assert event.data["name"] == LogEntry.objects.latest("pk").object_repr
    assert event.data["name"].startswith("Policy of")
    history = reverse("admin:jobs_dispatchpolicy_history", args=[policy.pk])
    texts = " ".join(texts_of(client.get(history).content.decode()))
    assert "Se cambió cambios: rondas 3" in texts
    assert "Modificado Rondas." in texts


def test_refusals_of_accounts_are_in_spanish(ours: Tenant):
    User.objects.filter(pk=ours.admin.pk).update(language="es")
    client, of = make.browser(ours.admin), {"organization": ours.organization.pk}
    IdentityProvider.objects.filter(**of).delete()
    own = reverse("admin:accounts_membership_change", args=[ours.admin.memberships.get().pk])
    answer = client.post(own, {**of, "role": "dispatcher", "is_active": "on", "alert_order": 100}, follow=True)
    assert "Es el último administrador activo de la organización." in answer.content.decode()
    provider = {"issuer": "https://login.example.com", "client_id": "dispatch", "secret": "s", **of}
    answer = client.post(
        reverse("admin:accounts_identityprovider_add"),
        {**provider, "is_required": "on", "allowed_domains": "acme.example", "second_factor": "always"},
    )
    page = answer.content.decode()
    assert "Elija quién puede iniciar sesión si el proveedor no funciona." in page
    assert "Antes, guarde la configuración sin esto y pruébela." in page
