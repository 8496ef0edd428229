"""Changes that superusers make outside of any organization are in the installation's audit log."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from accounts.models import Organization, User
from dispatch.core import clock, events
from dispatch.core.audit.chain import INSTALLATION
from dispatch.core.events import readers as event_readers
from dispatch.core.models import Event
from tests.accounts.test_members import SENT
from tests.core.test_audit_log import seal_all, sql, verify
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def root(settings: Any) -> User:
    settings.SECOND_FACTOR_FOR_SUPERUSERS = False
    return User.objects.create_superuser("root@example.com", "secret", name="Rosa Root")


def kinds() -> list[str]:
    return list(Event.objects.filter(organization_id=INSTALLATION).order_by("id").values_list("kind", flat=True))


def user_form(user: User | None, **changes: Any) -> dict[str, Any]:
    form = {"email": "new@example.com", "name": "Nina New", "phone": "", "is_active": "on"}
    if user is not None:
        form |= {"email": user.email, "name": user.name}
        form |= {f"memberships-{name}_FORMS": "0" for name in ("TOTAL", "INITIAL")}
    return {name: value for name, value in {**form, **changes}.items() if value is not None}


def test_changes_of_users_and_organizations_are_logged_without_names(root: User) -> None:
    browser = make.browser(root)
    assert browser.post(reverse("admin:accounts_user_add"), user_form(None)).status_code == 302
    made = User.objects.get(email="new@example.com")
    page = reverse("admin:accounts_user_change", args=[made.pk])
    assert browser.post(page, user_form(made, is_superuser="on")).status_code == 302
    made.refresh_from_db()
    assert made.is_superuser
    Organization.objects.filter(slug="newtown").delete()
    form = {
        "name": "Newtown", "slug": "newtown", "time_zone": "America/Phoenix", "default_region": "US",
        "distance_unit": "mi", "language": "en", "voice": "Polly.Joanna-Neural", "allowed_countries": "US",
        "is_active": "on",
    }  # fmt: skip
    added = browser.post(reverse("admin:accounts_organization_add"), form)
    assert added.status_code == 302, added.content.decode()[-2000:]
    assert browser.post(reverse("admin:accounts_user_delete", args=[made.pk]), {"post": "yes"}).status_code == 302
    assert kinds() == [
        "user.superuser_created", "user.added", "user.changed", "installation.row_added", "user.deleted",
    ]  # fmt: skip
    rows = Event.objects.filter(organization_id=INSTALLATION, actor_type="user")
    assert {(row.actor_id, row.actor_label) for row in rows} == {(root.pk, f"user {root.pk}")}
    assert any("superuser" in name.lower() for name in rows.get(kind="user.changed").data["fields"])
    logged = " ".join(f"{row.actor_label} {json.dumps(row.data)}" for row in rows)
    assert not any(word in logged for word in ("Rosa", "Nina", "example.com"))


def test_a_password_link_is_in_the_event_log(root: User) -> None:
    member = make.dispatcher(make.organization())
    page = reverse("admin:accounts_user_new_password_link", args=[member.pk])
    make.browser(root).post(page, SENT)
    event = Event.objects.get(kind="membership.password_link_created")
    assert (event.organization_id, event.actor_id) == (member.memberships.get().organization_id, root.pk)


def test_the_installations_chain_is_verified_and_exported(root: User, tmp_path: Path) -> None:
    events.append(INSTALLATION, "installation.row_changed", 5)
    seal_all()
    assert "Installation: 2 sealed events up to position 2" in verify("--installation")
    out = StringIO()
    call_command("export_audit_log", "--installation", stdout=out)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [row["kind"] for row in rows] == ["user.superuser_created", "installation.row_changed"]
    assert all(row["chain"] for row in rows)
    sql("UPDATE core_event SET actor_label = 'Someone else' WHERE kind = 'user.superuser_created'")
    with pytest.raises(CommandError, match=r"Installation, position 1: event .* was changed"):
        verify()
    call_command(
        "restart_audit_log", "--installation", "--operator", "Ann", "--reason", "test",
        "--export", str(tmp_path / "former.jsonl"), stdout=StringIO(),
    )  # fmt: skip
    assert "Installation: RESTARTED" in verify()


def test_expired_events_of_the_installation_are_deleted(root: User, monkeypatch: pytest.MonkeyPatch) -> None:
    from accounts import loops

    for name in list(event_readers.readers):
        if name != "audit_log":
            monkeypatch.delitem(event_readers.readers, name)
    clock.travel(402 * 86_400)
    events.append(INSTALLATION, "installation.row_changed", 5)
    seal_all()
    loops.delete_expired_shared()
    assert kinds() == ["installation.row_changed"]
    assert "Installation: 1 sealed event up to position 2" in verify()


def test_queue_changes_are_logged(root: User) -> None:
    page = reverse("django_rq:clear", args=[0])
    assert make.browser(root).post(page).status_code < 400
    assert Event.objects.get(kind="installation.queue_changed").data == {"path": page}
