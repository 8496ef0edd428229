"""OAuth client credentials: tokens are fetched, stored, refreshed and never sent without."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Coroutine, Iterator
from typing import Any
from urllib.parse import parse_qs

import pytest
from django.db import connection

from dispatch.core import clock
from dispatch.core.http import client
from dispatch.outbox import access_tokens, http_exchange
from dispatch.outbox.access_tokens import AccessTokens, TokenPending, TokenUnavailable
from dispatch.outbox.models import Attempt, Endpoint
from dispatch.outbox.services import endpoints
from tests.api.client import Api
from tests.harness.outbox import World
from tests.outbox.receiver import Answer, Receiver, Visit
from tests.support import factories
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tokens() -> Iterator[Receiver]:
    """A token server that numbers its tokens."""
    found = Receiver()
    found.on_visit = lambda visit: give(found, f"t{len(found.visits)}")
    yield found
    found.close()


def give(server: Receiver, token: str, **fields: Any) -> None:
    server.default = Answer(200, json.dumps({"access_token": token, "token_type": "Bearer", **fields}))


def fields(tokens: Receiver, **more: Any) -> dict[str, Any]:
    return {
        "oauth_token_url": tokens.url, "oauth_client_id": "dispatch:1", "oauth_client_secret": "s&cret", **more,
    }  # fmt: skip


def demand(receiver: Receiver, *accepted: str) -> None:
    """Answer 401 to any token but these."""

    def check(visit: Visit) -> None:
        is_good = visit.headers.get("authorization") in [f"Bearer {token}" for token in accepted]
        receiver.default = Answer(200 if is_good else 401)

    receiver.on_visit = check


def test_requests_carry_a_token_that_is_fetched_once(world: World, tokens: Receiver) -> None:
    endpoint = world.endpoint(**fields(tokens, oauth_scope="read write", oauth_audience="https://erp"))
    world.start()
    world.send(endpoint, "a", "b", "c")
    world.receiver.got("a", "b", "c")
    assert {visit.headers["authorization"] for visit in world.receiver.visits} == {"Bearer t1"}
    (asked,) = tokens.visits
    assert parse_qs(asked.body.decode()) == {
        "grant_type": ["client_credentials"], "scope": ["read write"], "audience": ["https://erp"],
    }  # fmt: skip
    given = base64.b64decode(asked.headers["authorization"].removeprefix("Basic ")).decode()
    assert given == "dispatch%3A1:s%26cret"


def test_credentials_can_be_sent_in_the_body(world: World, tokens: Receiver) -> None:
    world.start()
    world.send(world.endpoint(**fields(tokens, oauth_client_auth="body")), "a")
    world.receiver.got("a")
    (asked,) = tokens.visits
    assert parse_qs(asked.body.decode())["client_secret"] == ["s&cret"]
    assert "authorization" not in asked.headers


def test_rejected_token_is_fetched_again_once_within_the_attempt(world: World, tokens: Receiver) -> None:
    """The receiver has revoked the stored token: the message arrives in the same attempt with a new one."""
    endpoint = world.endpoint(**fields(tokens))
    demand(world.receiver, "t1")
    world.start()
    world.becomes(world.send_one(endpoint, "a"), "COMPLETED")
    demand(world.receiver, "t2")
    message = world.becomes(world.send_one(endpoint, "b"), "COMPLETED")
    assert (message.attempts, len(tokens.visits)) == (1, 2)
    assert [visit.headers["authorization"] for visit in world.receiver.visits] == [
        "Bearer t1", "Bearer t1", "Bearer t2",
    ]  # fmt: skip


def test_receiver_that_rejects_every_token_causes_one_fetch(world: World, tokens: Receiver) -> None:
    endpoint = world.endpoint(**fields(tokens), retry_schedule_s=[], mode="IMMEDIATE")
    demand(world.receiver)
    world.start()
    for name in ("a", "b", "c"):
        world.becomes(world.send_one(endpoint, name), "ERROR")
    assert Attempt.objects.filter(error_class="http_401").count() == 3
    assert len(tokens.visits) == 2, "the first token, and one more after the first 401"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer(500), "The token server answered 500."),
        (Answer(401, '{"error": "invalid_client"}'), "The token server answered 401 (invalid_client)."),
        (Answer(302, headers={"Location": "http://127.0.0.1/"}), "The token server answered 302."),
        (Answer(200, "<html>"), "contains no usable access_token"),
        (Answer(200, '{"access_token": "a\\r\\nX-Evil: 1"}'), "contains no usable access_token"),
        (Answer(200, '{"access_token": ["a"]}'), "contains no usable access_token"),
        (Answer(200, '{"access_token": "a", "token_type": "mac"}'), "isn't a bearer token"),
        (Answer(200, "[" * 60_000), "contains no usable access_token"),
    ],
)
def test_without_token_nothing_is_sent_and_endpoint_says_why(
    world: World, tokens: Receiver, answer: Answer, reason: str
) -> None:
    tokens.on_visit, tokens.default = None, answer
    world.start()
    world.becomes(world.send_one(world.endpoint(**fields(tokens), retry_schedule_s=[]), "a"), "ERROR")
    attempt = Attempt.objects.get()
    assert attempt.error_class == "token"
    assert reason in attempt.error
    assert reason in endpoints.health_of(Endpoint.objects.select_related("target").get()).words
    assert not world.receiver.visits


def test_hanging_token_server_spends_no_retry_and_holds_no_one_else(
    world: World, tokens: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_exchange, "TOKEN_WAIT_S", 0.05)
    tokens.hold_all()
    slow, healthy = world.endpoint(**fields(tokens)), world.endpoint("Healthy")
    world.start()
    message = world.send_one(slow, "slow")
    world.becomes(message, "PENDING")
    tokens.count(1)
    world.becomes(world.send_one(healthy, "quick"), "COMPLETED")
    tokens.let_all_go()
    world.travel(http_exchange.TOKEN_DELAY_S)
    found = world.becomes(message, "COMPLETED")
    assert found.attempts == 1, "waiting for the token spent none"
    assert len(tokens.visits) == 1


def test_token_url_inside_the_network_is_refused_at_each_fetch(world: World, tokens: Receiver) -> None:
    endpoint = world.endpoint(**fields(tokens), retry_schedule_s=[])
    Endpoint.objects.update(oauth_token_url="https://169.254.169.254/latest/")
    world.start()
    world.becomes(world.send_one(endpoint, "a"), "ERROR")
    assert "The token URL can't be called: 169.254.169.254" in Attempt.objects.get().error
    assert not world.receiver.visits


# --- The stored tokens ----------------------------------------------------------------------------------------
def run(test: Coroutine[Any, Any, None]) -> None:
    async def closed() -> None:
        try:
            await asyncio.wait_for(test, 2 * PATIENCE)
        finally:
            await access_tokens.close()
            await client.close()

    asyncio.run(closed())


def unsaved(tokens: Receiver, pk: int = 7, **more: Any) -> Endpoint:
    return Endpoint(pk=pk, organization_id=1, **fields(tokens, **more))


async def settled(stored: AccessTokens) -> None:
    await asyncio.gather(*stored._fetches)


def test_token_is_refreshed_before_it_expires_while_the_old_one_is_used(tokens: Receiver) -> None:
    tokens.on_visit = lambda visit: give(tokens, f"t{len(tokens.visits)}", expires_in=100)

    async def test() -> None:
        stored, endpoint = access_tokens.shared(), unsaved(tokens)
        assert await stored.get(endpoint, PATIENCE) == "t1"
        clock.travel(79)
        assert await stored.get(endpoint, PATIENCE) == "t1"
        assert not stored._fetches
        clock.travel(3)
        assert await stored.get(endpoint, PATIENCE) == "t1"
        await settled(stored)
        assert await stored.get(endpoint, PATIENCE) == "t2"
        clock.travel(1000)
        assert await stored.get(endpoint, PATIENCE) == "t3"

    run(test())
    assert len(tokens.visits) == 3


@pytest.mark.parametrize(
    ("lifetime", "is_stored_s"), [(0.001, 0), (None, 100), (-5, 100), ("3600", 2000), ([], 100)]
)
def test_lifetimes_short_absent_and_odd(tokens: Receiver, lifetime: Any, is_stored_s: float) -> None:
    tokens.on_visit = lambda visit: give(tokens, f"t{len(tokens.visits)}", expires_in=lifetime)

    async def test() -> None:
        stored, endpoint = access_tokens.shared(), unsaved(tokens)
        assert await stored.get(endpoint, PATIENCE) == "t1"
        clock.travel(is_stored_s or 1)
        assert await stored.get(endpoint, PATIENCE) == ("t1" if is_stored_s else "t2")

    run(test())


def test_failed_refresh_keeps_the_token_until_it_expires(tokens: Receiver) -> None:
    tokens.on_visit = lambda visit: give(tokens, f"t{len(tokens.visits)}", expires_in=100)

    async def test() -> None:
        stored, endpoint = access_tokens.shared(), unsaved(tokens)
        await stored.get(endpoint, PATIENCE)
        tokens.on_visit, tokens.default = None, Answer(503)
        clock.travel(82)
        for _ in range(5):
            assert await stored.get(endpoint, PATIENCE) == "t1"
            await settled(stored)
        assert len(tokens.visits) == 2, "a failed refresh is not repeated at once"
        clock.travel(60)
        for _ in range(3):
            with pytest.raises(TokenUnavailable, match="503"):
                await stored.get(endpoint, PATIENCE)
        assert len(tokens.visits) == 3
        give(tokens, "new")
        clock.travel(access_tokens.FAILURE_KEPT_S + 1)
        assert await stored.get(endpoint, PATIENCE) == "new"

    run(test())


def test_concurrent_attempts_share_one_fetch_and_one_refresh(tokens: Receiver) -> None:
    async def test() -> None:
        stored, endpoint = access_tokens.shared(), unsaved(tokens)
        assert set(await asyncio.gather(*(stored.get(endpoint, PATIENCE) for _ in range(50)))) == {"t1"}
        assert all(stored.reject(endpoint, "t1") for _ in range(50))
        assert set(await asyncio.gather(*(stored.get(endpoint, PATIENCE) for _ in range(50)))) == {"t2"}

    run(test())
    assert len(tokens.visits) == 2


def test_changed_settings_get_another_token(tokens: Receiver) -> None:
    async def test() -> None:
        stored = access_tokens.shared()
        assert await stored.get(unsaved(tokens), PATIENCE) == "t1"
        assert await stored.get(unsaved(tokens, oauth_client_secret="other"), PATIENCE) == "t2"
        assert await stored.get(unsaved(tokens, pk=8), PATIENCE) == "t3"

    run(test())


def test_hanging_token_servers_of_one_organization_leave_fetches_to_others(tokens: Receiver) -> None:
    hanging = Receiver()
    hanging.hold_all()

    async def test() -> None:
        stored = access_tokens.shared()
        for pk in range(200):
            with pytest.raises(TokenPending):
                await stored.get(unsaved(hanging, pk=1000 + pk), 0)
        other = unsaved(tokens)
        other.organization_id = 2
        assert await stored.get(other, PATIENCE) == "t1"
        assert len(hanging.visits) <= access_tokens.FETCHES_PER_ORGANIZATION

    run(test())
    hanging.close()


# --- Settings -------------------------------------------------------------------------------------------------
@pytest.fixture
def api(world: World) -> Api:
    return Api(key=factories.api_key(world.organization))


def test_client_secret_is_encrypted_and_never_returned(api: Api, tokens: Receiver) -> None:
    made = api.post("endpoints/", {"name": "ERP", "url": "https://erp.example/", **fields(tokens)})
    assert made.status_code == 201, made.content
    assert "s&cret" not in made.content.decode()
    assert "s&cret" not in api.get("endpoints/").content.decode()
    assert made.json()["oauth_client_id"] == "dispatch:1"
    with connection.cursor() as cursor:
        cursor.execute("SELECT oauth_client_secret FROM outbox_endpoint")
        assert "s&cret" not in cursor.fetchone()[0]
    assert Endpoint.objects.get().oauth_client_secret == "s&cret"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("oauth_token_url", {"oauth_token_url": "http://tokens.example/"}),
        ("oauth_token_url", {"oauth_token_url": "https://10.0.0.1/"}),
        ("oauth_token_url", {"oauth_token_url": "https://user:pass@tokens.example/"}),
        ("oauth_token_url", {"oauth_token_url": ""}),
        ("oauth_client_id", {"oauth_client_id": ""}),
        ("oauth_client_secret", {"oauth_client_secret": ""}),
        ("oauth_client_auth", {"oauth_client_auth": "none"}),
        ("oauth_token_url", {"headers": {"authorization": "Bearer 1"}}),
    ],
)
def test_invalid_oauth_settings_are_rejected_by_field(
    api: Api, tokens: Receiver, field: str, changes: dict[str, Any]
) -> None:
    given = {"name": "ERP", "url": "https://erp.example/", **fields(tokens), **changes}
    answer = api.post("endpoints/", given)
    assert answer.status_code == 400
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_new_token_url_needs_the_client_secret_again(api: Api, tokens: Receiver) -> None:
    """Otherwise, an admin who cannot read the secret could have it sent to another server."""
    made = api.post("endpoints/", {"name": "ERP", "url": "https://erp.example/", **fields(tokens)}).json()
    at = f"endpoints/{made['id']}/"
    moved = {"oauth_token_url": "https://other.example/"}
    answer = api.patch(at, moved)
    assert answer.status_code == 400
    assert [error["field"] for error in answer.json()["errors"]] == ["oauth_client_secret"]
    assert api.patch(at, {"oauth_scope": "read"}).status_code == 200
    assert api.patch(at, {**moved, "oauth_client_secret": "new"}).status_code == 200
    assert api.patch(at, {"headers": {"Authorization": "x"}}).status_code == 400
    answer = api.patch(at, {"oauth_token_url": ""})
    assert (answer.status_code, answer.json()["oauth_client_id"]) == (200, "")
    assert Endpoint.objects.get().oauth_client_secret == ""
