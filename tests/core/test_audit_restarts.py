"""A broken audit log is restarted with a signed record, and only a signed redaction explains a changed event."""

# ruff: noqa: F811  (fixtures of the neighboring file)
from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.management import CommandError, call_command

from accounts import loops
from accounts.tenancy import actor_of
from dispatch.core import clock, events, reencryption
from dispatch.core.audit import chain, restarts, signatures
from dispatch.core.events import Actor
from dispatch.core.events import readers as event_readers
from dispatch.core.models import AuditAnchor, AuditRedaction, AuditRestart, AuditSeal, Event, FailedEvent
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject
from tests.core.test_audit_log import ids, organization, seal_all, sql, truncate_with_anchor, verify  # noqa: F401
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)


def restart(organization: Any, tmp_path: Path, name: str = "former") -> list[dict[str, Any]]:
    """Restart the organization's chain, and return the exported rows."""
    file = tmp_path / f"{name}.jsonl"
    call_command(
        "restart_audit_log", "--organization", organization.slug, "--operator", "Ann Ops",
        "--reason", "a bad disk", "--export", str(file), stdout=StringIO(),
    )  # fmt: skip
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_forged_erasure_does_not_hide_a_changed_event(organization: Any, ids: list[int]) -> None:
    """An attacker changes an event, deletes its salt, and appends an erasure that lists the new digest."""
    sql("UPDATE core_event SET actor_label = 'Someone else' WHERE id = %s", ids[2])
    sql("UPDATE core_auditseal SET salt = '' WHERE event_id = %s", ids[2])
    digest = chain.digest_event(Event.objects.get(pk=ids[2]), "")
    events.append(organization.pk, "person.erased", 0, redacted={str(ids[2]): digest})
    seal_all()
    with pytest.raises(CommandError, match=f"position 3: event {ids[2]} was changed"):
        verify()
    other = AuditRedaction(organization_id=organization.pk, event_id=ids[1], digest=digest)
    signatures.sign_row(other)
    AuditRedaction.objects.create(
        organization_id=organization.pk, event_id=ids[2], digest=digest, keyed_hash=other.keyed_hash
    )
    with pytest.raises(CommandError, match=f"position 3: event {ids[2]} was changed"):
        verify()


def test_redactions_keep_their_signature_when_the_key_changes(organization: Any, settings: Any) -> None:
    member = make.dispatcher(organization, "Yara Voss")
    make.admin(organization)
    membership = member.memberships.get()
    events.append(organization.pk, "membership.changed", membership.pk, actor=actor_of(member))
    seal_all()
    person = DataSubject(organization.pk, email=member.email, user_id=member.pk)
    personal_data.erase_person(person, actor=events.SYSTEM)
    seal_all()
    new = Fernet.generate_key().decode()
    settings.FIELD_ENCRYPTION_KEYS = [new, *settings.FIELD_ENCRYPTION_KEYS]
    call_command("reencrypt", stdout=StringIO())
    reports = {report.name: report for report in reencryption.check_columns()}
    report = reports["core.AuditRedaction.keyed_hash"]
    assert (report.values > 0, report.under_old_keys) == (True, 0)
    settings.FIELD_ENCRYPTION_KEYS = [new]
    assert "0 not sealed yet" in verify()


def test_restart_repairs_a_damaged_end_and_stays_on_record(
    organization: Any,
    ids: list[int],
    tmp_path: Path,
    settings: Any,
) -> None:
    truncate_with_anchor(ids)
    events.append(organization.pk, "api_key.created", 9)
    seal_all()
    assert FailedEvent.objects.filter(reader=chain.READER_NAME).count() == 1
    former = restart(organization, tmp_path)
    assert [row["id"] for row in former][:3] == ids[:3], "the former seals are kept as evidence"
    assert all(row["chain"] for row in former[:3])
    assert not FailedEvent.objects.filter(reader=chain.READER_NAME).exists()
    for _ in range(2):
        seal_all()
        report = verify()
        assert "RESTARTED at" in report
        assert "by Ann Ops (a bad disk)" in report
        assert "the anchor was changed" in report
        events.append(organization.pk, "api_key.created", 10)
    assert AuditSeal.objects.get(event_id=ids[0]).position == 4, "existing events are sealed again"
    kinds = Event.objects.filter(kind__endswith=".audit_log_restarted").values_list("organization_id", "kind")
    assert set(kinds) == {
        (organization.pk, "organization.audit_log_restarted"),
        (chain.INSTALLATION, "installation.audit_log_restarted"),
    }
    assert "Installation: 1 sealed event up to" in report
    new = Fernet.generate_key().decode()
    settings.FIELD_ENCRYPTION_KEYS = [new, *settings.FIELD_ENCRYPTION_KEYS]
    call_command("reencrypt", stdout=StringIO())
    settings.FIELD_ENCRYPTION_KEYS = [new]
    assert "RESTARTED at" in verify()


def test_erasure_leaves_the_signed_record_as_it_is(organization: Any, ids: list[int]) -> None:
    truncate_with_anchor(ids)
    restarts.restart_chain(organization.pk, operator="Ann Ops", reason="after the call of dana@example.com")
    seal_all()
    personal_data.erase_person(DataSubject(organization.pk, email="dana@example.com"), actor=Actor())
    seal_all()
    assert "RESTARTED at" in verify()
    event = Event.objects.get(kind="organization.audit_log_restarted")
    assert "dana" not in str(event.data)


def delete_record(_: Any) -> None:
    sql("DELETE FROM core_auditrestart")


def change_record(_: Any) -> None:
    sql("UPDATE core_auditrestart SET reason = 'nothing'")


def change_record_and_count(_: Any) -> None:
    sql("DELETE FROM core_auditrestart")
    sql("UPDATE core_auditanchor SET restarts = 0")


def change_event(ids: list[int]) -> None:
    sql("UPDATE core_event SET actor_label = 'Someone else' WHERE id = %s", ids[1])


@pytest.mark.parametrize(
    ("tamper", "message"),
    [
        (delete_record, "1 restart recorded, but 0 records found"),
        (change_record, "the record of restart 1 was changed"),
        (change_record_and_count, "the anchor was changed"),
        (change_event, "position 5: event .* was changed"),
    ],
)
def test_tampering_after_a_restart_is_found(
    tamper: Any,
    message: str,
    organization: Any,
    ids: list[int],
    tmp_path: Path,
) -> None:
    truncate_with_anchor(ids)
    restart(organization, tmp_path)
    verify()
    tamper(ids)
    with pytest.raises(CommandError, match=message):
        verify()
    restart(organization, tmp_path, "again")
    assert "RESTARTED at" in verify(), "every break can be repaired"


def test_a_valid_chain_is_not_restarted(organization: Any, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"the audit log is valid\. Nothing was changed"):
        restart(organization, tmp_path)
    assert not AuditRestart.objects.exists()
    with pytest.raises(CommandError, match="Name a new file"):
        restart(organization, tmp_path)
    with pytest.raises(CommandError, match="can't be written"):
        restart(organization, tmp_path / "missing")


def test_known_heads_end_with_a_recorded_restart_only(
    organization: Any,
    ids: list[int],
    tmp_path: Path,
) -> None:
    heads = str(tmp_path / "heads.jsonl")
    verify("--heads", heads)
    truncate_with_anchor(ids)
    restart(organization, tmp_path)
    verify("--heads", heads)
    verify("--heads", heads)
    AuditRestart.objects.all().delete()
    anchor = AuditAnchor.objects.get(pk=organization.pk)
    anchor.restarts = 0
    signatures.sign_row(anchor)
    anchor.save()
    with pytest.raises(CommandError, match="1 restart verified before, but 0 records found"):
        verify("--heads", heads)


@pytest.fixture
def only_sealer_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(event_readers.readers):
        if name != chain.READER_NAME:
            monkeypatch.delitem(event_readers.readers, name)


def delete_expired() -> None:
    for _ in range(10):
        if loops.delete_expired() is None:
            break


@pytest.mark.usefixtures("only_sealer_reads")
def test_retention_goes_on_beside_a_damaged_end_and_after_a_restart(
    organization: Any,
    ids: list[int],
    tmp_path: Path,
) -> None:
    truncate_with_anchor(ids)
    kept = Event.objects.filter(pk__in=ids).count()
    clock.travel(402 * 86_400)
    events.append(organization.pk, "job.created", 77)
    seal_all()
    delete_expired()
    assert not Event.objects.filter(subject_type="job").exclude(subject_id=77).exists()
    assert Event.objects.filter(pk__in=ids).count() == kept, "evidence is kept"
    restart(organization, tmp_path)
    seal_all()
    delete_expired()
    assert not Event.objects.filter(pk__in=ids).exists()
    assert "RESTARTED at" in verify()


def test_a_missing_anchor_is_not_replaced_by_a_new_one(organization: Any) -> None:
    AuditAnchor.objects.all().delete()
    events.append(organization.pk, "api_key.created", 9)
    seal_all()
    assert FailedEvent.objects.filter(reader=chain.READER_NAME).exists()
    with pytest.raises(CommandError, match="the anchor is missing"):
        verify()


def test_one_broken_chain_does_not_hide_another(organization: Any, ids: list[int]) -> None:
    other = make.organization()
    events.append(other.pk, "api_key.created", 1)
    seal_all()
    for owner in (organization, other):
        sql("DELETE FROM core_event WHERE organization_id = %s", owner.pk)
    with pytest.raises(CommandError) as broken:
        verify()
    assert f"Organization {organization.pk}, position 1" in str(broken.value)
    assert f"Organization {other.pk}, position 1" in str(broken.value)
