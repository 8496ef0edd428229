"""The audit log is sealed in a hash chain: a row that is changed, removed or inserted is found, by a command."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.management import CommandError, call_command
from django.db import connection
from django.urls import reverse

from accounts import loops, services
from accounts.tenancy import actor_of
from dispatch.core import clock, events, reencryption
from dispatch.core.audit import chain
from dispatch.core.events import quarantine
from dispatch.core.events import readers as event_readers
from dispatch.core.models import AuditAnchor, AuditSeal, Event, FailedEvent
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject
from tests.core.horizon import all_readable
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)
KINDS = ["api_key.created", "membership.added", "membership.changed", "retention.changed", "api_key.revoked"]


def seal_all() -> None:
    all_readable()
    while chain.READER.step():
        pass


def verify(*arguments: str) -> str:
    out = StringIO()
    call_command("verify_audit_log", *arguments, stdout=out)
    return out.getvalue()


def sql(statement: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


@pytest.fixture
def organization() -> Any:
    """An organization with five sealed audit events, and others that are not audited."""
    made = make.organization()
    for number, kind in enumerate(KINDS, 1):
        events.append(made.pk, kind, number, name=f"entry {number}")
        events.append(made.pk, "job.created", number)
    seal_all()
    return made


@pytest.fixture
def ids(organization: Any) -> list[int]:
    audited = Event.objects.filter(organization_id=organization.pk, subject_type__in=chain.SUBJECTS)
    return list(audited.order_by("id").values_list("pk", flat=True))


def test_audit_events_are_sealed_and_verified(organization: Any, ids: list[int]) -> None:
    assert list(AuditSeal.objects.order_by("position").values_list("event_id", flat=True)) == ids
    assert "5 sealed events up to position 5, 0 not sealed yet" in verify()
    events.append(organization.pk, "api_key.created", 9)
    assert "5 sealed events up to position 5, 1 not sealed yet" in verify()
    seal_all()
    assert "6 sealed events up to position 6, 0 not sealed yet" in verify("--organization", organization.slug)
    chain.seal_events(list(Event.objects.order_by("id").filter(subject_type="api_key")))
    assert "6 sealed events" in verify(), "events that a reader gets twice are sealed once"


def test_events_that_a_stopped_sealer_left_out_are_no_forgery(
    organization: Any, ids: list[int], monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """A dispatcher runs with wrong keys until too many events of the organization have failed."""
    monkeypatch.setattr(quarantine, "MAX_KEPT_OF_ONE", 2)
    keys, settings.FIELD_ENCRYPTION_KEYS = settings.FIELD_ENCRYPTION_KEYS, [Fernet.generate_key().decode()]
    for number in range(10, 16):
        events.append(organization.pk, "api_key.created", number)
        seal_all()
    settings.FIELD_ENCRYPTION_KEYS = keys
    assert FailedEvent.objects.filter(reader=chain.READER_NAME).count() < 6
    assert "5 sealed events up to position 5" in verify()
    insert_behind(ids)
    with pytest.raises(CommandError, match="was inserted, or its seal removed"):
        verify()


def change(column: str, value: str) -> Callable[[list[int]], None]:
    return lambda ids: sql(f"UPDATE core_event SET {column} = {value} WHERE id = %s", ids[2])


def remove_event(ids: list[int]) -> None:
    sql("DELETE FROM core_event WHERE id = %s", ids[2])


def remove_event_and_seal(ids: list[int]) -> None:
    remove_event(ids)
    sql("DELETE FROM core_auditseal WHERE event_id = %s", ids[2])


def truncate(ids: list[int]) -> None:
    sql("DELETE FROM core_event WHERE id = ANY(%s)", ids[3:])
    sql("DELETE FROM core_auditseal WHERE event_id = ANY(%s)", ids[3:])


def truncate_with_anchor(ids: list[int]) -> None:
    """Set the anchor to the new end, as somebody without the key can."""
    truncate(ids)
    last = AuditSeal.objects.get(event_id=ids[2])
    AuditAnchor.objects.update(position=last.position, head=chain.hash_seal(last))


def remove_everything_but_events(ids: list[int]) -> None:
    sql("DELETE FROM core_auditseal")
    sql("DELETE FROM core_auditanchor")


def insert_behind(ids: list[int]) -> None:
    """Insert an event where the sealer has passed."""
    sql(
        "INSERT INTO core_event"
        " (xid, organization_id, kind, subject_type, subject_id, actor_type, actor_label, data, at)"
        " SELECT xid, organization_id, 'api_key.created', 'api_key', 77, 'user', 'Ann', '{}', at"
        " FROM core_event WHERE id = (SELECT min(id) FROM core_event)"
    )


def insert_with_seal(ids: list[int]) -> None:
    """Insert an event with a seal at the position of another one, which moves on."""
    insert_behind(ids)
    sql("UPDATE core_auditseal SET position = position + 1000 WHERE position >= 3")
    sql("UPDATE core_auditseal SET position = position - 999 WHERE position > 1000")
    event = Event.objects.get(subject_id=77)
    before = AuditSeal.objects.get(position=2)
    AuditSeal.objects.create(
        organization_id=event.organization_id, position=3, event_id=event.pk, at=event.at, salt="s",
        digest=chain.digest_event(event, "s"), previous=chain.hash_seal(before),
    )  # fmt: skip


def rewrite_the_rest(ids: list[int]) -> None:
    """Change an event and compute every later seal again, as somebody without the key can."""
    sql("UPDATE core_event SET actor_label = 'Someone else' WHERE id = %s", ids[2])
    previous = AuditSeal.objects.get(position=2)
    for seal in AuditSeal.objects.filter(position__gt=2).order_by("position"):
        seal.previous = chain.hash_seal(previous)
        seal.digest = chain.digest_event(Event.objects.get(pk=seal.event_id), seal.salt)
        seal.save()
        previous = seal


def forget_salt(ids: list[int]) -> None:
    """Claim that the event was erased."""
    sql("UPDATE core_event SET actor_label = 'erased' WHERE id = %s", ids[2])
    sql("UPDATE core_auditseal SET salt = '' WHERE event_id = %s", ids[2])


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (change("actor_label", "'Someone else'"), "position 3: event {2} was changed"),
        (change("data", '\'{"name": "entry x"}\''), "position 3: event {2} was changed"),
        (change("at", "at - interval '1 day'"), "position 3: event {2} was changed"),
        (change("subject_type", "'job'"), "position 3: event {2} was changed"),
        (change("organization_id", "organization_id + 1"), "position 3: event {2} was changed"),
        (remove_event, "position 3: event {2} is missing"),
        (remove_event_and_seal, "position 3: the seal is missing"),
        (truncate, "position 4: the seal is missing"),
        (truncate_with_anchor, "the anchor was changed"),
        (remove_everything_but_events, "event {0} was inserted, or its seal removed"),
        (insert_behind, "was inserted, or its seal removed"),
        (insert_with_seal, "position 4: the seal of event {2} does not follow"),
        (rewrite_the_rest, "position 5: the seal was changed"),
        (forget_salt, "position 3: event {2} was changed"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_tampering_is_found(tamper: Any, message: str, organization: Any, ids: list[int]) -> None:
    tamper(ids)
    with pytest.raises(CommandError) as broken:
        verify()
    assert message.format(*ids) in str(broken.value)
    assert "\n" not in str(broken.value)


def test_the_command_ends_with_1_and_one_line(organization: Any, ids: list[int], test_environment: Any) -> None:
    from tests.support.processes import running

    remove_event(ids)
    with running("verify_audit_log", env=test_environment) as command:
        assert command.ends() == 1, command.log()
        assert f"position 3: event {ids[2]} is missing." in command.log()


def test_a_chain_that_was_set_back_is_found_by_its_head(organization: Any, tmp_path: Path) -> None:
    heads = str(tmp_path / "heads.jsonl")
    anchor = AuditAnchor.objects.get()
    events.append(organization.pk, "api_key.created", 9)
    seal_all()
    verify("--heads", heads)
    verify("--heads", heads)
    sql("DELETE FROM core_event WHERE id = (SELECT event_id FROM core_auditseal WHERE position = 6)")
    sql("DELETE FROM core_auditseal WHERE position = 6")
    anchor.save()
    assert "position 5" in verify(), "the old anchor is authentic"
    with pytest.raises(CommandError, match="position 6: the seal is missing"):
        verify("--heads", heads)
    events.append(organization.pk, "api_key.created", 10)
    seal_all()
    with pytest.raises(CommandError, match="position 6: the chain is not the one that was verified before"):
        verify("--heads", heads)


def test_a_forged_anchor_is_not_continued(organization: Any, ids: list[int]) -> None:
    truncate_with_anchor(ids)
    events.append(organization.pk, "api_key.created", 9)
    seal_all()
    assert FailedEvent.objects.get().reader == chain.READER_NAME, "it is kept and users are notified"
    with pytest.raises(CommandError, match="the anchor was changed"):
        verify()


def test_concurrent_events_are_sealed_in_order_of_their_transactions(organization: Any) -> None:
    """The chain waits for an open transaction; the writers do not."""
    from tests.core.horizon import held_horizon

    with held_horizon():
        events.append(organization.pk, "api_key.created", 9)
        chain.READER.step()
        assert "1 not sealed yet" in verify()
    seal_all()
    assert "6 sealed events up to position 6, 0 not sealed yet" in verify()


def test_erasing_a_person_leaves_a_valid_chain(organization: Any) -> None:
    member = make.dispatcher(organization, "Yara Voss")
    make.admin(organization)
    membership = member.memberships.get()
    events.append(organization.pk, "membership.changed", membership.pk, actor=actor_of(member), name="Yara Voss")
    seal_all()
    person = DataSubject(organization.pk, email=member.email, user_id=member.pk)
    personal_data.erase_person(person, actor=events.SYSTEM)
    assert "1 not sealed yet" in verify()
    seal_all()
    assert "7 sealed events" in verify()
    erased = AuditSeal.objects.get(position=6)
    assert erased.salt == "", "the former contents cannot be guessed from the digest"
    assert Event.objects.get(pk=erased.event_id).actor_label == "erased"
    sql("UPDATE core_event SET actor_label = 'Someone' WHERE id = %s", erased.event_id)
    with pytest.raises(CommandError, match=r"position 6: event .* was changed"):
        verify()


def test_an_erasure_by_an_earlier_version_is_named_as_the_possible_cause(
    organization: Any, ids: list[int]
) -> None:
    """During a rolling upgrade: it changes sealed events, and signs nothing."""
    events.append(organization.pk, "person.erased", 1, named_by=["phone"], counts={"events": 1}, redacted={})
    Event.objects.filter(pk=ids[0]).update(data={"name": "erased"})
    with pytest.raises(CommandError, match=rf"event {ids[0]} was changed\.$"):
        verify()
    unsigned = events.append(organization.pk, "person.erased", 1, named_by=["phone"], counts={"events": 1})
    with pytest.raises(CommandError, match=r"erased a person: see event \d+ of .*restart_audit_log") as found:
        verify()
    assert unsigned is None or str(getattr(unsigned, "pk", "")) in str(found.value)


def test_erasing_a_member_with_a_key_keeps_the_chain(organization: Any) -> None:
    make.admin(organization)
    member = make.dispatcher(organization, "Yara Voss")
    services.create_api_key(
        organization, f"ERP of {member.email}", ["read"], actor=events.SYSTEM, created_by=member
    )
    seal_all()
    person = DataSubject(organization.pk, email=member.email, user_id=member.pk)
    personal_data.erase_person(person, actor=events.SYSTEM)
    assert Event.objects.filter(kind="api_key.revoked").latest("pk").data["name"] == "ERP of erased"
    seal_all()
    assert "0 not sealed yet" in verify()


def test_a_restore_keeps_the_chain(organization: Any) -> None:
    events.append(organization.pk, "api_key.created", 9)
    event_readers.after_restore()
    seal_all()
    assert "6 sealed events up to position 6, 0 not sealed yet" in verify()


def test_retention_shortens_the_chain_at_its_start(
    organization: Any, ids: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(event_readers.readers):
        if name != chain.READER_NAME:
            monkeypatch.delitem(event_readers.readers, name)
    clock.travel(200 * 86_400)
    events.append(organization.pk, "membership.added", 6)
    clock.travel(201 * 86_400)
    events.append(organization.pk, "membership.added", 7)
    seal_all()
    for _ in range(10):
        if loops.delete_expired() is None:
            break
    assert not Event.objects.filter(pk__in=ids).exists()
    assert AuditAnchor.objects.get().start == 5
    assert "2 sealed events up to position 7" in verify()
    sql("DELETE FROM core_event WHERE subject_id = 6")
    with pytest.raises(CommandError, match=r"position 6: event .* is missing"):
        verify()


def test_a_new_encryption_key_signs_the_anchors_again(organization: Any, settings: Any) -> None:
    new = Fernet.generate_key().decode()
    settings.FIELD_ENCRYPTION_KEYS = [new, *settings.FIELD_ENCRYPTION_KEYS]

    def anchors() -> tuple[int, int]:
        reports = {report.name: report for report in reencryption.check_columns()}
        report = reports["core.AuditAnchor.keyed_hash"]
        return report.values, report.under_old_keys

    assert anchors() == (1, 1)
    call_command("reencrypt", stdout=StringIO())
    assert anchors() == (1, 0)
    settings.FIELD_ENCRYPTION_KEYS = [new]
    assert "5 sealed events" in verify()
    settings.FIELD_ENCRYPTION_KEYS = [Fernet.generate_key().decode()]
    with pytest.raises(CommandError, match="the anchor was changed"):
        verify()


# --- export -----------------------------------------------------------------------------------------------------


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_command_exports_the_chain(organization: Any, ids: list[int], tmp_path: Path) -> None:
    events.append(make.organization().pk, "api_key.created", 1)
    out = StringIO()
    call_command("export_audit_log", "--organization", organization.slug, stdout=out)
    rows = lines(out.getvalue())
    assert [row["kind"] for row in rows] == KINDS
    assert [row["id"] for row in rows] == ids
    assert [row["chain"]["position"] for row in rows] == [1, 2, 3, 4, 5]
    seal = AuditSeal.objects.get(position=2)
    assert (rows[1]["chain"]["digest"], rows[2]["chain"]["previous"]) == (seal.digest, chain.hash_seal(seal))
    file, tomorrow = tmp_path / "audit.jsonl", clock.now() + timedelta(days=1)
    call_command(
        "export_audit_log",
        "--organization",
        organization.slug,
        "--since",
        f"{tomorrow:%Y-%m-%d}",
        "--output",
        str(file),
    )
    assert file.read_text() == ""
    with pytest.raises(CommandError, match="Unknown organization"):
        call_command("export_audit_log", "--organization", "nowhere")


def test_admins_download_their_organizations_log(organization: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from dispatch.console.privacy import audit_log

    events.append(make.organization().pk, "api_key.created", 1)
    browser, page = make.browser(make.admin(organization)), reverse("audit_log")
    assert "Audit log of" in browser.get(page).content.decode()
    answer = browser.post(page, {"since": "2020-01-01", "until": ""})
    assert answer["Content-Disposition"].endswith('.jsonl"')
    assert [row["kind"] for row in lines(answer.content.decode())] == KINDS
    assert Event.objects.get(kind="organization.audit_log_exported").data["events"] == 5
    nothing = browser.post(page, {"since": "", "until": "2020-01-01"})
    assert nothing.content == b""
    reversed_days = browser.post(page, {"since": "2021-01-01", "until": "2020-01-01"}).content.decode()
    assert "Must not be before the first day." in reversed_days
    for name, day in [("since", "0001-01-01"), ("until", "9999-12-31")]:
        answer = browser.post(page, {name: day})
        assert answer.status_code == 200
        assert "Enter a valid date." in answer.content.decode(), day
    monkeypatch.setattr(audit_log, "MAX_EVENTS", 2)
    assert "more than 2 events" in browser.post(page, {"since": ""}).content.decode()
    assert make.browser(make.dispatcher(organization)).post(page, {"since": ""}).status_code == 403
