"""Signatures, verified with the reference library."""

from __future__ import annotations

from base64 import b64encode
from datetime import timedelta

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import WebhookVerificationError

from dispatch.core import clock
from dispatch.core.http import webhook_signing as signing

BODY = b'{"type":"job.assigned"}'


def test_the_reference_library_accepts_what_we_sign() -> None:
    secret = signing.new_secret()
    headers = signing.headers([secret], "msg_42", clock.now(), BODY)
    assert set(headers) == {"webhook-id", "webhook-timestamp", "webhook-signature"}
    assert standardwebhooks.Webhook(secret).verify(BODY, headers) == {"type": "job.assigned"}


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=50), max_size=5), st.integers(1, 10**15))
def test_any_body_can_be_signed(body: dict[str, str], number: int) -> None:
    import json

    secret, text = signing.new_secret(), json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    try:
        text.decode()
    except UnicodeDecodeError:
        return  # our JSON has no lone surrogates
    headers = signing.headers([secret], f"msg_{number}", clock.now(), text)
    assert standardwebhooks.Webhook(secret).verify(text, headers) == body


def test_both_secrets_of_an_overlap_verify() -> None:
    old, new, other = signing.new_secret(), signing.new_secret(), signing.new_secret()
    headers = signing.headers([new, old], "msg_1", clock.now(), BODY)
    for secret in (old, new):
        standardwebhooks.Webhook(secret).verify(BODY, headers)
    with pytest.raises(WebhookVerificationError):
        standardwebhooks.Webhook(other).verify(BODY, headers)


@pytest.mark.parametrize("change", ["body", "id", "timestamp", "late", "early"])
def test_nothing_that_is_signed_can_be_changed(change: str) -> None:
    secret = signing.new_secret()
    at = {"late": timedelta(minutes=-6), "early": timedelta(minutes=6)}.get(change, timedelta())
    headers, body = signing.headers([secret], "msg_1", clock.now() + at, BODY), BODY
    if change == "body":
        body = BODY.replace(b"assigned", b"cancelled")
    if change == "id":
        headers["webhook-id"] = "msg_2"
    if change == "timestamp":
        headers["webhook-timestamp"] = str(int(headers["webhook-timestamp"]) + 1)
    with pytest.raises(WebhookVerificationError):
        standardwebhooks.Webhook(secret).verify(body, headers)


def test_a_secret_is_fresh_and_of_the_right_form() -> None:
    secrets = {signing.new_secret() for _ in range(50)}
    assert len(secrets) == 50
    assert all(secret.startswith("whsec_") and len(signing.check_secret(secret)) == 32 for secret in secrets)


@pytest.mark.parametrize(
    "secret",
    ["", "whsec_", "whsec_not base64!", b64encode(b"x" * 32).decode(), "whsec_" + b64encode(b"x" * 23).decode(),
     "whsec_" + b64encode(b"x" * 65).decode(), "whsec_é"],
)  # fmt: skip
def test_a_bad_secret_is_named_as_such_and_not_repeated(secret: str) -> None:
    with pytest.raises(signing.BadSecret) as refused:
        signing.headers([secret], "msg_1", clock.now(), BODY)
    assert len(secret) < 7 or secret not in str(refused.value)


@pytest.mark.parametrize("message_id", ["", "msg.1", "."])
def test_id_that_makes_the_signed_text_ambiguous_is_rejected(message_id: str) -> None:
    with pytest.raises(ValueError, match="cannot be signed"):
        signing.headers([signing.new_secret()], message_id, clock.now(), BODY)


def test_nothing_is_sent_unsigned_by_mistake() -> None:
    with pytest.raises(ValueError, match="no secret"):
        signing.headers([], "msg_1", clock.now(), BODY)
