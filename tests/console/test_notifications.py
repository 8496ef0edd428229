"""A user's own pages without JavaScript: their notifications and notification settings."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.test import Client

from accounts.models import Organization, User
from dispatch.core import events
from dispatch.core.models import Event
from notifications.models import Alert, Delivery, Notification, Preference, Route
from notifications.services.preferences import Wants, wants_of
from tests.support import factories as make
from tests.support.tenants import Tenant

pytestmark = pytest.mark.django_db

LIST, CHOICES = "/notifications/", "/notifications/choices/"
Browser = Callable[..., Client]


@pytest.fixture
def office() -> Organization:
    return make.organization("Desert Air")


@pytest.fixture
def dora(office: Organization) -> User:
    return make.dispatcher(office, "Dora")


def text(answer: Any) -> str:
    """Return the text of the page's main part, without tags."""
    assert answer.status_code in (200, 422), answer.content[:500]
    page = answer.content.decode()
    return unescape(" ".join(re.sub(r"<[^>]+>", " ", page[max(0, page.find("<main")) :]).split()))


def ticked(answer: Any) -> set[str]:
    """Return the names of the checked boxes."""
    found = re.findall(r'<input type="checkbox" name="([^"]+:[^"]+)"( checked)?>', answer.content.decode())
    return {name for name, is_on in found if is_on}


def kinds(answer: Any) -> list[str]:
    return re.findall(r'name="kind" value="([^"]+)"', answer.content.decode())


def note(of: Organization, user: User, title: str, **fields: Any) -> Notification:
    fields = {"kind": "job.cannot_make_it", "subject_type": "job", "subject_id": 12, **fields}
    event = events.append(of.pk, fields["kind"], 12)
    return Notification.objects.create(organization=of, user=user, event_id=event.pk, title=title, **fields)


# --- Inbox ----------------------------------------------------------------------------------------------------


def test_empty_list_explains_what_appears_there(browser: Browser, dora: User) -> None:
    said = text(browser(dora).get(LIST))
    assert "No notifications yet" in said
    assert "Jobs that need a dispatcher" in said


def test_own_notifications_are_listed_newest_first_with_links(
    browser: Browser, office: Organization, dora: User
) -> None:
    note(office, dora, "Job 12: Sam cannot make it")
    note(office, dora, "Schedule Boiler fails", subject_type="schedule", subject_id=4)
    note(office, make.dispatcher(office), "A colleague's")
    elsewhere = make.organization()
    note(elsewhere, dora, "Elsewhere")
    page = browser(dora).get(LIST)
    said = text(page)
    assert said.index("Schedule Boiler fails") < said.index("Job 12: Sam cannot make it")
    assert "A colleague's" not in said
    assert "Elsewhere" not in said
    assert 'href="/board/?job=12"' in page.content.decode()
    assert 'href="/schedules/4/"' in page.content.decode()
    told = browser(dora).get("/api/v1/notifications/", headers={"X-Organization": office.slug}).json()["results"]
    assert [row["page"] for row in told] == ["/schedules/4/", "/board/?job=12"]


def test_notifications_are_marked_read_singly_and_all(browser: Browser, office: Organization, dora: User) -> None:
    rows = [note(office, dora, f"Note {n}") for n in range(3)]
    strange = note(office, make.dispatcher(office), "A colleague's")
    here = browser(dora)
    here.post("/notifications/read/", {"id": rows[0].pk})
    here.post("/notifications/read/", {"id": strange.pk})
    assert {row.pk for row in Notification.objects.filter(organization=office, read_at=None)} == {
        rows[1].pk,
        rows[2].pk,
        strange.pk,
    }
    assert "Note 0" not in text(here.get(LIST + "?view=unread"))
    answer = here.post("/notifications/read/", {"view": "unread"}, follow=True)
    assert answer.request["QUERY_STRING"] == "view=unread"
    assert "2 notifications marked as read." in text(answer)
    assert list(Notification.objects.filter(organization=office, read_at=None)) == [strange]
    assert here.post("/notifications/read/", {"id": "twelve"}).status_code == 404


def test_an_alert_is_acknowledged_for_all(browser: Browser, ours: Tenant) -> None:
    row = ours.row(Notification)
    here = browser(ours.dispatcher)
    assert "Waiting for acknowledgment" in text(here.get(LIST + "?view=alerts"))
    said = text(here.post(f"/notifications/{row.pk}/acknowledge/", follow=True))
    assert f"Acknowledged by {ours.dispatcher}" in said
    assert Alert.objects.get(pk=row.alert_id).status == "acknowledged"
    colleague = browser(make.dispatcher(ours.organization))
    assert colleague.post(f"/notifications/{row.pk}/acknowledge/").status_code == 404


def test_older_notifications_are_on_the_next_page(browser: Browser, office: Organization, dora: User) -> None:
    for n in range(52):
        note(office, dora, f"Note {n:02}")
    here = browser(dora)
    first = here.get(LIST)
    assert "Note 02" in text(first)
    assert "Note 01" not in text(first)
    older = re.search(r'href="(\?[^"]*before=\d+)"', first.content.decode())
    assert older
    said = text(here.get(LIST + unescape(older[1])))
    assert "Note 01" in said
    assert "Note 02" not in said
    assert "No matching notifications" in text(here.get(LIST + "?before=1"))


# --- Preferences ----------------------------------------------------------------------------------------------


def test_default_preferences_are_checked(browser: Browser, dora: User) -> None:
    page = browser(dora).get(CHOICES)
    on = ticked(page)
    assert {"job.pending:email", "job.pending:sms", "job.pending:voice", "job.cannot_make_it:shown"} <= on
    assert "job.cannot_make_it:email" not in on
    assert "job.pending:shown" not in page.content.decode()  # an alert is always shown
    assert "job.cannot_make_it:voice" not in page.content.decode()  # only alerts call
    assert "Reset to defaults" not in text(page)


def test_only_notifications_for_the_users_role_are_offered(
    browser: Browser, office: Organization, dora: User
) -> None:
    assert "endpoint.disabled" not in kinds(browser(dora).get(CHOICES))
    boss = browser(make.admin(office))
    assert "endpoint.disabled" in kinds(boss.get(CHOICES))
    assert "You get it if nobody acknowledges it" in text(boss.get(CHOICES))
    Route.objects.create(organization=office, kind="endpoint.disabled", to="dispatchers")
    Route.objects.create(organization=office, kind="job.cannot_make_it", is_on=False)
    Route.objects.create(organization=office, kind="technician.auto_paused", level="critical")
    page = browser(dora).get(CHOICES)
    assert "endpoint.disabled" in kinds(page)
    assert "job.cannot_make_it" not in kinds(page)
    assert "technician.auto_paused:voice" in ticked(page)  # the organization made it an alert


def test_notifications_for_everybody_are_offered_to_everybody(
    browser: Browser, office: Organization, dora: User
) -> None:
    here = browser(dora)
    assert {"account.outage_began:voice", "spend_cap.warned:email"} <= ticked(here.get(CHOICES))
    here.post(CHOICES, {"kind": "spend_cap.warned", "spend_cap.warned:shown": "on"})
    assert not wants_of(office.pk, [dora.pk], "spend_cap.warned")[dora.pk].email
    page = browser(make.admin(office)).get(CHOICES).content.decode()
    for kind in ("account.outage_began", "job.note_written"):
        row = page.partition(f'value="{kind}"')[2].partition("</tr>")[0]
        assert row
        assert "Goes to dispatchers" not in row, "admins get it at once"


def test_notifications_about_what_belongs_to_a_user_are_offered_to_dispatchers(
    browser: Browser, dora: User
) -> None:
    page = browser(dora).get(CHOICES)
    assert {"alert_channel.stopped", "push_subscription.expired"} <= set(kinds(page))
    assert "endpoint.disabled" not in kinds(page)


def test_preference_applies_and_can_be_reset(browser: Browser, office: Organization, dora: User) -> None:
    here = browser(dora)
    page = here.get(CHOICES)
    on = ticked(page) - {"job.pending:sms"} | {"job.cannot_make_it:email"}
    answer = here.post(CHOICES, {"kind": kinds(page), **dict.fromkeys(on, "on")}, follow=True)
    assert "Saved." in text(answer)
    assert ticked(answer) == on
    assert set(Preference.objects.filter(user=dora).values_list("kind", flat=True)) == {
        "job.pending",
        "job.cannot_make_it",
    }
    assert wants_of(office.pk, [dora.pk], "job.pending")[dora.pk] == Wants(True, True, False, True, True, True)
    assert Event.objects.filter(kind="preference.changed", organization_id=office.pk).count() == 2

    again = here.post(CHOICES, {"kind": kinds(page), **dict.fromkeys(on, "on")}, follow=True)
    assert "No changes." in text(again)

    usual = here.post("/notifications/choices/usual/", follow=True)
    assert ticked(usual) == ticked(page)
    assert not Preference.objects.filter(user=dora).exists()
    assert Event.objects.filter(kind="preference.forgotten", organization_id=office.pk).count() == 2


def save(here: Client, changed: set[str]) -> set[str]:
    """Check or uncheck these boxes, and return the names of those of "can't make it" that are then checked."""
    page = here.get(CHOICES)
    answer = here.post(CHOICES, {"kind": kinds(page), **dict.fromkeys(ticked(page) ^ changed, "on")}, follow=True)
    assert "Saved." in text(answer)
    return {name.split(":")[1] for name in ticked(answer) if name.startswith("job.cannot_make_it")}


def test_a_choice_for_a_toast_turns_off_no_channel_of_a_later_alert(
    browser: Browser, office: Organization, dora: User
) -> None:
    here, kind = browser(dora), "job.cannot_make_it"
    assert save(here, {f"{kind}:email"}) == {"shown", "email"}
    rule = Route.objects.create(organization=office, kind=kind, level="critical")
    assert {f"{kind}:{way}" for way in ("email", "sms", "voice", "chat", "push")} <= ticked(here.get(CHOICES))
    assert wants_of(office.pk, [dora.pk], kind, is_alert=True)[dora.pk] == Wants(*[True] * 6)

    assert save(here, {f"{kind}:sms"}) == {"email", "voice", "chat", "push"}
    assert save(here, {f"{kind}:voice"}) == {"email", "chat", "push"}
    rule.delete()
    assert save(here, {f"{kind}:email"}) == {"shown", "chat", "push"}
    Route.objects.create(organization=office, kind=kind, level="critical")
    wants = wants_of(office.pk, [dora.pk], kind, is_alert=True)[dora.pk]
    assert wants == Wants(True, email=False, sms=False, voice=False, chat=True, push=True)


def test_a_channel_chosen_for_a_toast_is_kept_for_a_later_alert(
    browser: Browser, office: Organization, dora: User
) -> None:
    here, kind = browser(dora), "job.cannot_make_it"
    assert save(here, {f"{kind}:push"}) == {"shown", "push"}
    assert save(here, {f"{kind}:push", f"{kind}:chat"}) == {"shown", "chat"}
    wants = wants_of(office.pk, [dora.pk], kind, is_alert=True)[dora.pk]
    assert wants == Wants(True, email=False, sms=False, voice=True, chat=True, push=False)


def test_preferences_that_are_not_on_the_page_are_unchanged(
    browser: Browser, office: Organization, dora: User
) -> None:
    here = browser(dora)
    here.post(CHOICES, {"kind": ["endpoint.disabled", "no.such"], "endpoint.disabled:email": "on"})
    here.post(CHOICES, {"job.pending:email": "on"})
    assert not Preference.objects.filter(user=dora).exists()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ("hello", "is not a valid phone number"),
        ("602 555", "is not a valid phone number"),
        ("+44 20 7946 0958", "country not allowed"),
    ],
)
def test_a_number_that_cannot_be_called_is_refused(browser: Browser, dora: User, given: str, error: str) -> None:
    answer = browser(dora).post("/notifications/phone/", {"phone": given})
    assert answer.status_code == 422
    assert error in text(answer)
    assert f'value="{given}"' in answer.content.decode()
    assert not User.objects.get(pk=dora.pk).phone


def test_own_number_is_changed_and_the_event_omits_it(browser: Browser, dora: User) -> None:
    here = browser(dora)
    assert "Add a phone number to get texts and calls" in text(here.get(CHOICES))
    here.post("/notifications/phone/", {"phone": "(602) 555-0134"})
    here.post("/notifications/phone/", {"phone": "602 555 0134"})
    assert str(User.objects.get(pk=dora.pk).phone) == "+16025550134"
    shown = here.get(CHOICES).content.decode()
    assert 'value="(602) 555-0134" placeholder="(201) 555-0123"' in shown
    told = Event.objects.get(kind="membership.phone_changed")
    assert "555" not in str(told.data)
    here.post("/notifications/phone/", {"phone": ""})
    assert not User.objects.get(pk=dora.pk).phone


def test_language_of_own_alerts_is_chosen_with_an_event(browser: Browser, dora: User) -> None:
    here = browser(dora)
    assert "English for alerts" in text(here.get(CHOICES))
    for chosen in ("es", "es", "", "xx"):
        assert here.post("/notifications/language/", {"language": chosen}).status_code == (
            400 if chosen == "xx" else 302
        )
    assert User.objects.get(pk=dora.pk).language == ""
    changes = Event.objects.filter(kind="membership.language_changed").order_by("id")
    assert list(changes.values_list("data__language", flat=True)) == ["es", ""]


def test_anonymous_visitors_are_sent_to_sign_in(browser: Browser) -> None:
    for address in (LIST, CHOICES):
        answer = browser(None).get(address)
        assert answer.status_code == 302
        assert answer.url.startswith("/admin/login/")


def test_external_link_opens_in_its_organization(browser: Browser, office: Organization) -> None:
    root = make.user("Root", is_superuser=True)
    other = make.organization("Another")
    here = browser(root)
    for one in (office, other):
        answer = here.get(f"/board/?job=12&in={one.slug}", follow=True)
        assert answer.request["QUERY_STRING"] in ("job=12", f"job=12&in={one.slug}")
        assert one.name in answer.content.decode().partition("</header>")[0]
    dora = browser(make.dispatcher(office))
    assert office.name in dora.get(f"/board/?in={other.slug}").content.decode()


def test_the_admin_shows_whom_an_alert_reached_and_what_is_installed(browser: Browser, ours: Tenant) -> None:
    here = browser(ours.admin)
    ours.row(Delivery)
    said = text(here.get(f"/admin/notifications/alert/{ours.row(Alert).pk}/change/"))
    assert f"{ours.dispatcher}: Email, failed ({ours.tag})" in said
    assert "Acknowledged" in said
    assert "Not acknowledged" in said
    said = text(here.get("/admin/notifications/escalationpolicy/add/"))
    assert "1. dispatchers on duty after 120 s, 45 s between people; 2. all dispatchers after 60 s" in said


def test_admin_lists_show_labels_instead_of_stored_values(browser: Browser, ours: Tenant) -> None:
    here = browser(ours.admin)
    alert = ours.row(Alert)
    Alert.objects.filter(pk=alert.pk).update(status="settled", next_action_at=None, next_repeat_at=None)
    listed = here.get("/admin/notifications/alert/").content.decode()
    assert re.search(r"bg-green-100[^>]*>\s*Resolved\s*<", listed)
    row = ours.row(Notification)
    Notification.objects.filter(pk=row.pk).update(user=ours.admin, level="critical")
    listed = here.get("/admin/notifications/notification/").content.decode()
    assert re.search(r"bg-red-100[^>]*>\s*Critical\s*<", listed)


def test_empty_admin_list_distinguishes_no_rows_from_no_matches(browser: Browser, office: Organization) -> None:
    here = browser(make.admin(office))
    said = text(here.get("/admin/notifications/route/"))
    assert "No notification rules yet" in said
    assert "Add the first notification rule" in said
    assert "New alerts appear here." in text(here.get("/admin/notifications/alert/"))
    assert "No matching alerts" in text(here.get("/admin/notifications/alert/?status__exact=open"))
    assert "Show all" in text(here.get("/admin/notifications/alert/?q=boiler"))
