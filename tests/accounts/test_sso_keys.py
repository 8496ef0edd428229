"""Which keys of an identity provider are accepted, and what hostile ones can do."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from joserfc.jwk import ECKey, OKPKey, RSAKey

from accounts.models import Organization
from tests.accounts.second_factor import is_signed_in
from tests.accounts.single_sign_on import sign_in, text_of
from tests.support import factories as make
from tests.support.openid_provider import OpenIdProvider

pytestmark = pytest.mark.django_db


def encode(number: int) -> str:
    return base64.urlsafe_b64encode(number.to_bytes((number.bit_length() + 7) // 8)).rstrip(b"=").decode()


def publish(idp: OpenIdProvider, **members: Any) -> None:
    idp.published_keys = {"keys": [idp.key.as_dict(private=False) | members]}


def reason_of(row: Any, idp: OpenIdProvider, acme: Organization) -> str:
    return text_of(sign_in(row, idp, make.browser(make.admin(acme)), "?try=1"))


def test_private_members_of_a_published_key_are_not_read(row: Any, idp: OpenIdProvider) -> None:
    """Finding the factors of n by d takes hours for a long d; here d does not belong to n."""
    publish(idp, d=encode(2**2047 + 1))
    assert is_signed_in(sign_in(row, idp))
    publish(idp, d="!", p=5, oth=[])
    assert is_signed_in(sign_in(row, idp))


@pytest.mark.parametrize(("kind", "curve", "algorithm"), [(ECKey, "P-256", "ES256"), (OKPKey, "Ed25519", "EdDSA")])
def test_private_member_of_a_key_on_a_curve_is_not_read(
    row: Any, idp: OpenIdProvider, kind: Any, curve: str, algorithm: str
) -> None:
    key = kind.generate_key(curve, {"kid": idp.key.kid})
    idp.signing_key, idp.header = key, {"alg": algorithm}
    for private in ({}, {"d": "AQAB"}):
        idp.published_keys = {"keys": [key.as_dict(private=False) | private]}
        assert is_signed_in(sign_in(row, idp))


@pytest.mark.parametrize("bits", [2047, 16_385, 250_000])
def test_rsa_key_that_is_too_short_or_too_long_is_refused(
    row: Any, idp: OpenIdProvider, acme: Organization, bits: int
) -> None:
    publish(idp, n=encode(2 ** (bits - 1) + 1))
    assert "must have 2,048 to 16,384 bits" in reason_of(row, idp, acme)
    assert not is_signed_in(sign_in(row, idp))


def test_signature_by_a_short_rsa_key_is_refused(row: Any, idp: OpenIdProvider, acme: Organization) -> None:
    idp.signing_key = RSAKey.generate_key(1024, {"kid": idp.key.kid})
    idp.published_keys = {"keys": [idp.signing_key.as_dict(private=False)]}
    assert "must have 2,048 to 16,384 bits" in reason_of(row, idp, acme)
    assert not is_signed_in(sign_in(row, idp))


@pytest.mark.parametrize("modulus", [None, 5, [], "", "ü"])
def test_rsa_key_without_a_valid_modulus_is_refused(
    row: Any, idp: OpenIdProvider, acme: Organization, modulus: Any
) -> None:
    publish(idp, n=modulus)
    assert "RSA key" in reason_of(row, idp, acme)
    assert not is_signed_in(sign_in(row, idp))
