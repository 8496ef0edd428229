"""Alert calls speak the language of the organization; the stored English titles are not read aloud in Spanish."""

from __future__ import annotations

import pytest

from accounts.models import Organization, User
from dispatch.core import languages
from dispatch.core.models import Event
from dispatch.jobs.models import Job
from notifications import rendering
from notifications.models import Alert, Notification
from notifications.rules import CRITICAL, TABLE
from tests.notifications.conftest import Watch

LUPE = "Polly.Lupe-Neural"


def row_of(kind: str, **alert: str) -> Notification:
    """A notification whose words are in English, as they are stored."""
    subject_type = kind.partition(".")[0]
    organization = Organization(name="Copper State Plumbing", slug="copper")
    return Notification(
        organization=organization,
        user=User(name="Ana"),
        kind=kind,
        subject_type=subject_type,
        subject_id=12,
        title="Something happened",
        body="Water heater · Phoenix, AZ 85003",
        alert=Alert(organization=organization, kind=kind, **alert),
    )


@pytest.mark.parametrize("rule", [rule for rule in TABLE if rule.level == CRITICAL], ids=lambda rule: rule.kind)
def test_every_alert_is_named_in_spanish(rule):
    with languages.override(languages.SPANISH):
        greeting, title, *details = rendering.render_call("alert", row_of(rule.kind))
        label = languages.gettext(rule.label)
    assert greeting == "Esta es una alerta de Copper State Plumbing."
    assert title == (f"{label}. Trabajo 12." if rule.kind.startswith("job.") else f"{label}.")
    assert label != rule.label
    has_details = rule.kind in rendering.KINDS_WITH_PLAIN_DETAILS
    assert details[:-1] == (["Water heater. Phoenix, Arizona, 8 5 0 0 3."] if has_details else [])
    assert details[-1] == "Para confirmar, oprima 1. Para oírla otra vez, oprima asterisco."


def test_end_of_an_alert_is_said_in_the_language():
    row = row_of("job.pending", settled_how="Maria assigned the job")
    assert rendering.render_call("over", row) == ("This alert is resolved. Maria assigned the job.", "Goodbye.")
    with languages.override(languages.SPANISH):
        assert rendering.render_call("over", row) == ("Esta alerta está resuelta.", "Adiós.")


@pytest.mark.parametrize("rule", TABLE, ids=lambda rule: rule.kind)
@pytest.mark.parametrize(("own", "organization"), [("es", "en"), ("", "es")])
def test_every_text_and_email_is_in_the_language_of_its_recipient(rule, own: str, organization: str):
    row = row_of(rule.kind)
    row.user.language, row.organization.language = own, organization
    with languages.override(languages.SPANISH):
        label = languages.gettext(rule.label)
    assert label != rule.label
    text, mail = rendering.render_text(row), rendering.render_email(row)
    assert text.startswith(f"Copper State Plumbing: {label.translate(rendering.PLAIN_VOWELS)}.")
    assert "Responda 1 para confirmar." in text
    assert "Something happened" not in text + mail.subject + mail.text + mail.html
    assert label in mail.subject
    assert "Cambiar la configuración de las notificaciones" in mail.text
    assert '<html lang="es">' in mail.html
    row.user.language = "en"
    assert "Something happened" in rendering.render_text(row)
    assert "Reply 1 to acknowledge." in rendering.render_text(row)
    assert rendering.render_email(row).subject == "[Copper State Plumbing] Something happened"


@pytest.mark.django_db
@pytest.mark.parametrize("reason", [reason for reason in Job.PendingReason if reason], ids=str)
def test_reason_of_a_pending_job_is_translated(reason: Job.PendingReason):
    row = row_of("job.pending")
    data = {"reason": str(reason), "reason_text": "in English"}
    row.event_id = Event.objects.create(organization_id=1, kind=row.kind, subject_id=12, data=data).pk
    row.user.language = "es"
    with languages.override(languages.SPANISH):
        said = languages.gettext(reason.label)
        assert rendering.title_of(row) == f"Un trabajo necesita un despachador. Trabajo 12. {said}"
    assert said != reason.label
    assert "in English" not in rendering.render_text(row)


@pytest.mark.django_db(transaction=True)
def test_alert_call_and_text_reply_are_in_the_language_of_the_member(watch: Watch):
    ana = watch.dispatcher("Ana")
    User.objects.filter(pk=ana.pk).update(language="es")
    watch.alert()
    watch.after(121)
    call = watch.rings(ana).answer()
    call.hears("Para confirmar, oprima 1.")
    assert {words["language"] for words in call.now["said"]} == {"es-US"}
    call.press("1").hears("Gracias, Ana. Usted confirmó esta alerta. No se llamará a nadie más.").ended()


@pytest.mark.django_db(transaction=True)
def test_alert_call_is_in_the_language_and_voice_of_the_organization(watch: Watch):
    Organization.objects.filter(pk=watch.floor.organization.pk).update(language="es", voice=LUPE)
    ana = watch.dispatcher("Ana")
    alert = watch.alert()
    watch.after(121)
    call = watch.rings(ana).answer()
    call.hears("Esta es una alerta de Copper State Plumbing.")
    job, reason = f"Trabajo {alert.subject_id}", "No hay un técnico calificado cerca"
    call.hears(f"Un trabajo necesita un despachador. {job}. {reason}.")
    call.hears("Para confirmar, oprima 1.")
    assert {(words["voice"], words["language"]) for words in call.now["said"]} == {(LUPE, "es-US")}
    call.press("1").hears("Gracias, Ana. Usted confirmó esta alerta. No se llamará a nadie más.").ended()
    alert.refresh_from_db()
    assert (alert.status, alert.acknowledged_by) == ("acknowledged", ana)
