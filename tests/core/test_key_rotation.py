"""Encryption and signing keys are replaced by the guide in docs/operations/keys.md, and nothing is lost."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core import signing
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import override_settings

from accounts.auth.session_store import SessionStore
from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock, crypto, keyed_hashes
from dispatch.core.http import webhook_signing
from dispatch.jobs import signed_links
from dispatch.jobs.models import Submission
from dispatch.outbox import pointer
from dispatch.outbox.models import Endpoint
from tests.support import factories as make
from tests.support.waiting import PATIENCE

GUIDE = Path(__file__).parents[2] / "docs" / "operations" / "keys.md"


def blocks(section: str) -> Iterator[list[str]]:
    """The lines of each command block of one section of the guide."""
    text = GUIDE.read_text().partition(f"## {section}\n")[2].partition("\n## ")[0]
    for block in re.findall(r"```sh\n(.*?)```", text, re.S):
        yield [line.strip() for line in block.splitlines() if line.strip()]


def run(line: str) -> str:
    python, manage, *arguments = shlex.split(line)
    assert (python, manage) == ("python", "manage.py")
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def follow(section: str, settings: Any, keys: dict[str, str]) -> Iterator[str]:
    """Follow the guide, with the `keys` in place of its words; yield after each block what it printed."""
    for lines in blocks(section):
        out = ""
        for line in lines:
            if variable := re.fullmatch(r"([A-Z_]+)=(.*)", line):
                values = [keys[word] for word in variable[2].split(",") if word]
                setattr(settings, variable[1], values[0] if variable[1] == "SECRET_KEY" else values)
            else:
                out += run(line)
            if line.endswith("make_key"):
                keys["new"] = out.strip()
        yield out


def raw(model: Any, field: str, pk: int) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {field} FROM {model._meta.db_table} WHERE id = %s", [pk])
        return cursor.fetchone()[0]


@pytest.mark.django_db
def test_the_guide_replaces_an_encryption_key_and_no_credential_is_lost(settings: Any) -> None:
    old = Fernet.generate_key().decode()
    settings.FIELD_ENCRYPTION_KEYS = [old]
    organization = make.organization()
    account = make.account(organization, auth_token="provider-token-1")
    endpoint = Endpoint.objects.create(
        organization=organization,
        pool=make.pool(organization),
        name="ERP",
        url="https://erp.example/hook",
        secret=webhook_signing.new_secret(),
        headers={"X-Key": "shelf 4"},
    )
    steps = follow("FIELD_ENCRYPTION_KEYS", settings, {"old": old})
    next(steps)
    next(steps)
    assert settings.FIELD_ENCRYPTION_KEYS[0] == old
    next(steps)
    later = make.account(organization, auth_token="provider-token-2")
    with pytest.raises(CommandError, match=r"Values under former keys: [1-9]\d*\. Run `manage\.py reencrypt`"):
        run("python manage.py reencrypt --check")
    untouched = raw(ProviderAccount, "auth_token", later.pk)
    assert re.search(r"capacity.ProviderAccount.auth_token: 2 values, 1 under .* 1 encrypted again", next(steps))
    assert raw(ProviderAccount, "auth_token", later.pk) == untouched
    next(steps)
    assert len(settings.FIELD_ENCRYPTION_KEYS) == 1
    assert settings.FIELD_ENCRYPTION_KEYS[0] != old
    assert "The other keys can be removed." in next(steps)
    assert ProviderAccount.objects.get(pk=account.pk).auth_token == "provider-token-1"
    assert ProviderAccount.objects.get(pk=later.pk).auth_token == "provider-token-2"
    assert Endpoint.objects.get(pk=endpoint.pk).headers == {"X-Key": "shelf 4"}
    assert next(steps, None) is None


@pytest.mark.django_db
def test_a_value_of_a_lost_key_is_named_and_stops_no_other(settings: Any) -> None:
    lost, old, new = (Fernet.generate_key().decode() for _ in range(3))
    organization = make.organization()
    settings.FIELD_ENCRYPTION_KEYS = [lost]
    poison = make.account(organization, auth_token="nobody knows")
    settings.FIELD_ENCRYPTION_KEYS = [old]
    healthy = make.account(organization, auth_token="provider-token")
    settings.FIELD_ENCRYPTION_KEYS = [new, old]
    before, out = raw(ProviderAccount, "auth_token", poison.pk), StringIO()
    with pytest.raises(CommandError, match=r"cannot be decrypted with FIELD_ENCRYPTION_KEYS: 1\."):
        call_command("reencrypt", stdout=out)
    assert f"1 unreadable (ids {poison.pk})" in out.getvalue()
    assert raw(ProviderAccount, "auth_token", poison.pk) == before
    assert crypto.is_under_first_key(raw(ProviderAccount, "auth_token", healthy.pk))


@pytest.mark.django_db(transaction=True)
def test_a_value_in_use_is_left_and_a_value_changed_meanwhile_is_kept(settings: Any) -> None:
    old, new = (Fernet.generate_key().decode() for _ in range(2))
    settings.FIELD_ENCRYPTION_KEYS = [old]
    account = make.account(make.organization(), auth_token="first")
    settings.FIELD_ENCRYPTION_KEYS = [new, old]
    locked, done = Event(), Event()

    def admin_saves() -> None:
        with transaction.atomic():
            row = ProviderAccount.objects.select_for_update().get(pk=account.pk)
            locked.set()
            assert done.wait(PATIENCE)
            row.auth_token = "second"
            row.save()
        connection.close()

    admin = Thread(target=admin_saves)
    admin.start()
    try:
        assert locked.wait(PATIENCE)
        with pytest.raises(CommandError, match=r"Values under former keys: 1\. They were in use"):
            call_command("reencrypt", stdout=StringIO())
    finally:
        done.set()
        admin.join()
    call_command("reencrypt", stdout=StringIO())
    settings.FIELD_ENCRYPTION_KEYS = [new]
    assert ProviderAccount.objects.get(pk=account.pk).auth_token == "second"


@pytest.mark.django_db
def test_the_guide_replaces_the_secret_key_and_links_and_tokens_stay_valid(settings: Any) -> None:
    old = settings.SECRET_KEY
    technician = make.technician(make.organization(), "Ann Lee")
    link = signed_links.technician_url(technician).rpartition("/t/")[2].strip("/")
    service = make.service_type(technician.organization, "drain")
    submission = Submission.objects.create(
        organization=technician.organization,
        service_type=service,
        status="processed",
        form={},
        customer_phone=make.phone(),
    )
    status = signed_links.status_url(submission).rpartition("/s/")[2].strip("/")
    token = pointer.make_token(7, 1, clock.now() + timedelta(minutes=1))
    steps = follow("SECRET_KEY", settings, {"old": old, "new": "a new secret key that is long enough to be one"})
    next(steps)
    next(steps)
    assert old != settings.SECRET_KEY
    assert signed_links.technician_of(link) == technician
    assert signed_links.submission_of(status) == submission
    assert pointer.check_token(token, 7) == 1
    next(steps)
    assert settings.SECRET_KEY_FALLBACKS == []
    with pytest.raises(signed_links.InvalidLink):
        signed_links.technician_of(link)
    with pytest.raises(signed_links.InvalidLink):
        signed_links.submission_of(status)
    with pytest.raises(pointer.BadToken):
        pointer.check_token(token, 7)


def processes(section: str) -> list[dict[str, Any]]:
    """Return the settings of the processes before the guide and after each of its restarts."""
    words = {word: Fernet.generate_key().decode() for word in ("old", "new")}
    known: dict[str, Any] = {"SECRET_KEY": words["old"], "SECRET_KEY_FALLBACKS": []}
    if section != "SECRET_KEY":
        known[section] = [words["old"]]
    found = [known]
    for lines in blocks(section):
        given = dict(line.split("=") for line in lines if re.fullmatch(r"[A-Z_]+=[a-z,]*", line))
        values = {name: [words[word] for word in text.split(",") if word] for name, text in given.items()}
        known = {**known, **{name: keys[0] if name == "SECRET_KEY" else keys for name, keys in values.items()}}
        found += [known] if given else []
    return found


SECTIONS = ("FIELD_ENCRYPTION_KEYS", "SECRET_KEY", "OUTBOX_TOKEN_KEYS")


@pytest.mark.parametrize("section", SECTIONS)
def test_processes_understand_each_other_during_every_restart(section: str) -> None:
    """Some have restarted and others have not: each accepts what the others sign, hash and encrypt."""
    known = processes(section)
    assert len(known) == 4
    for before, after in pairwise(known):
        for writer, reader in ((before, after), (after, before)):
            with override_settings(**writer):
                session = SessionStore().encode({"_auth_user_id": "7"})
                token = pointer.make_token(7, 1, clock.now() + timedelta(minutes=1))
                link = signing.dumps("form", salt="test")
                credential, digest = crypto.encrypt("provider-token"), keyed_hashes.make_hash("proof", "7")
            with override_settings(**reader):
                assert SessionStore().decode(session) == {"_auth_user_id": "7"}
                assert pointer.check_token(token, 7) == 1
                assert signing.loads(link, salt="test") == "form"
                assert crypto.decrypt(credential) == "provider-token"
                assert keyed_hashes.is_hash_of("proof", "7", digest)


@pytest.mark.parametrize("section", SECTIONS)
def test_the_guide_ends_with_the_new_key_only(section: str) -> None:
    first, *_, last = processes(section)
    keys = [[of["SECRET_KEY"]] if section == "SECRET_KEY" else of[section] for of in (first, last)]
    assert [len(each) for each in keys] == [1, 1]
    assert keys[0] != keys[1]
    assert last["SECRET_KEY_FALLBACKS"] == []
