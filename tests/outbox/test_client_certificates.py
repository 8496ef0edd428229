"""Mutual TLS: the certificate is checked when it is saved, presented to the receiver, and warned about."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.outbox.models import Attempt, Endpoint
from dispatch.outbox.services import endpoints
from dispatch.outbox.services.authentication import warn_about_certificates
from tests.api.client import Api
from tests.harness.outbox import World
from tests.outbox.receiver import Receiver
from tests.support import factories
from tests.support.certificates import Authority

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def receiver(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver that demands a client certificate, and whose own certificate is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    found = Receiver(tls=authority.server_context())
    yield found
    found.close()


@pytest.fixture
def api(world: World) -> Api:
    return Api(key=factories.api_key(world.organization))


def body(receiver: Receiver, certificate: str, key: str, **fields: Any) -> dict[str, Any]:
    return {"name": "ERP", "url": receiver.url, "client_certificate": certificate, "client_key": key, **fields}


def add(api: Api, receiver: Receiver, authority: Authority, name: str = "ERP", **fields: Any) -> Endpoint:
    certificate, key = authority.issue(name)
    answer = api.post("endpoints/", body(receiver, certificate, key, name=name, **fields))
    assert answer.status_code == 201, answer.content
    return Endpoint.objects.get(pk=answer.json()["id"])


def test_each_endpoint_presents_its_certificate(
    world: World, receiver: Receiver, api: Api, authority: Authority
) -> None:
    """Two endpoints at one address never share a connection, also when many requests reuse theirs."""
    one, two = add(api, receiver, authority, "One"), add(api, receiver, authority, "Two")
    world.start()
    for place in range(3):
        world.send(one, f"a{place}", group="a")
        world.send(two, f"b{place}", group="b")
    world.all_end()
    assert {(visit.group, visit.client) for visit in receiver.visits} == {("a", "One"), ("b", "Two")}
    assert len(receiver.visits) == 6


def test_without_certificate_receiver_gets_no_request(world: World, receiver: Receiver, api: Api) -> None:
    world.start()
    message = world.send_one(world.endpoint(retry_schedule_s=[]), "a")
    world.becomes(message, "ERROR")
    assert Attempt.objects.get().error_class == "unreachable"
    assert not receiver.visits


def test_replaced_certificate_is_used_for_the_next_message(
    world: World, receiver: Receiver, api: Api, authority: Authority
) -> None:
    endpoint = add(api, receiver, authority)
    world.start()
    world.becomes(world.send_one(endpoint, "a"), "COMPLETED")
    certificate, key = authority.issue("Newer")
    changed = {"client_certificate": certificate.replace("\n", "\r\n"), "client_key": key}
    assert api.patch(f"endpoints/{endpoint.pk}/", changed).status_code == 200
    world.becomes(world.send_one(endpoint, "b"), "COMPLETED")
    assert [visit.client for visit in receiver.visits] == ["ERP", "Newer"]


def test_expired_certificate_fails_with_the_reason_and_no_request(
    world: World, receiver: Receiver, api: Api, authority: Authority
) -> None:
    endpoint = add(api, receiver, authority, retry_schedule_s=[])
    Endpoint.objects.update(client_certificate_until=clock.now() - timedelta(hours=1))
    world.start()
    world.becomes(world.send_one(endpoint, "a"), "ERROR")
    attempt = Attempt.objects.get()
    assert (attempt.error_class, attempt.error[:34]) == ("certificate", "The client certificate expired on ")
    assert attempt.error in endpoints.health_of(Endpoint.objects.select_related("target").get()).words
    assert not receiver.visits


def test_unreadable_certificate_fails_with_the_reason(
    world: World, receiver: Receiver, api: Api, authority: Authority
) -> None:
    endpoint = add(api, receiver, authority, retry_schedule_s=[])
    endpoint.client_key = "nonsense"
    endpoint.save()
    world.start()
    world.becomes(world.send_one(endpoint, "a"), "ERROR")
    assert Attempt.objects.get().error_class == "certificate"
    assert not receiver.visits


def _rsa_key(bits: int) -> str:
    key = rsa.generate_private_key(65537, bits)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def test_oversized_rsa_key_is_refused_before_its_factors_are_tested(
    receiver: Receiver, api: Api, authority: Authority
) -> None:
    p, q = (1 << 4095) + 15, (1 << 4094) + 41  # not prime: a test of the factors would say "not a key"
    d = (1 << 8180) + 1
    numbers = rsa.RSAPrivateNumbers(
        p, q, d, d % (p - 1), d % (q - 1), pow(q, -1, p), rsa.RSAPublicNumbers(65537, p * q)
    )
    key = numbers.private_key(unsafe_skip_rsa_key_validation=True)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    answer = api.post("endpoints/", body(receiver, authority.issue("ERP")[0], text))
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "client_key")
    assert "must have 2,048 to 4,096 bits" in answer.content.decode()


def test_certificates_that_cannot_work_are_refused(receiver: Receiver, api: Api, authority: Authority) -> None:
    certificate, key = authority.issue("ERP")
    _, other_key = authority.issue("Other")
    expired, expired_key = authority.issue("Expired", days=-1)
    early, early_key = authority.issue("Early", starts_in_days=2)
    locked = load_pem_private_key(key.encode(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    refused = [
        ("client_key", body(receiver, certificate, "")),
        ("client_key", body(receiver, certificate, other_key)),
        ("client_key", body(receiver, certificate, "nonsense")),
        ("client_key", body(receiver, certificate, locked.decode())),
        ("client_key", body(receiver, certificate, _rsa_key(1024))),
        ("client_certificate", body(receiver, expired, expired_key)),
        ("client_certificate", body(receiver, early, early_key)),
        ("client_certificate", body(receiver, "nonsense", key)),
        ("client_certificate", body(receiver, key, key)),
        ("client_certificate", body(receiver, "", key)),
        ("client_certificate", body(receiver, "x" * 20_001, key)),
        ("client_certificate", body(receiver, "\n".join([certificate] * 11), key)),
        ("client_certificate", body(receiver, certificate, key, url="http://erp.example/hook")),
    ]
    for field, given in refused:
        answer = api.post("endpoints/", given)
        assert answer.status_code == 400, given
        assert [error["field"] for error in answer.json()["errors"]] == [field], answer.content
    assert not Endpoint.objects.exists()


def test_key_is_never_returned_and_kept_when_not_given(receiver: Receiver, api: Api, authority: Authority) -> None:
    endpoint = add(api, receiver, authority)
    key = endpoint.client_key
    assert "PRIVATE KEY" not in api.get(f"endpoints/{endpoint.pk}/").content.decode()
    assert api.patch(f"endpoints/{endpoint.pk}/", {"name": "New"}).status_code == 200
    # A new certificate needs its key, and an http URL would not present the certificate.
    assert (
        api.patch(f"endpoints/{endpoint.pk}/", {"client_certificate": authority.issue("x")[0]}).status_code == 400
    )
    assert api.patch(f"endpoints/{endpoint.pk}/", {"url": "http://erp.example/"}).status_code == 400
    endpoint.refresh_from_db()
    assert endpoint.client_key == key
    answer = api.patch(f"endpoints/{endpoint.pk}/", {"client_certificate": ""})
    assert (answer.status_code, answer.json()["client_certificate_until"]) == (200, None)
    endpoint.refresh_from_db()
    assert endpoint.client_key == ""


def test_admins_are_warned_at_each_stage_once(receiver: Receiver, api: Api, authority: Authority) -> None:
    endpoint = add(api, receiver, authority)
    until, seen = endpoint.client_certificate_until, []
    assert until is not None
    for days in (31, 29, 28, 6, 0.5, 0.4, -1, -30):
        clock.travel((until - timedelta(days=days) - clock.now()).total_seconds())
        seen.append(warn_about_certificates())
        assert warn_about_certificates() == 0
    assert seen == [0, 1, 0, 1, 1, 0, 1, 0]
    events = Event.objects.filter(kind="endpoint.certificate_expiring").order_by("id")
    assert [event.data["days"] for event in events] == [30, 7, 1, 0]
    assert [event.data["until_text"].split(" on ")[0] for event in events] == [
        "It expires", "It expires", "It expires", "It expired",
    ]  # fmt: skip
    certificate, key = authority.issue("New", days=200)
    answer = api.patch(f"endpoints/{endpoint.pk}/", {"client_certificate": certificate, "client_key": key})
    assert answer.status_code == 200
    assert Event.objects.filter(kind="endpoint.certificate_replaced").count() == 1
    assert warn_about_certificates() == 0
