"""Verify ID tokens: signature, issuer, audience, times and nonce (OpenID Connect Core 1.0, section 3.1.3.7)."""

from __future__ import annotations

from hmac import compare_digest
from typing import Any

import jwt
from jwt.utils import base64url_decode

# Signatures with a key pair only: a shared secret would let everyone who knows it sign.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
# Tolerated difference between the provider's clock and ours.
CLOCK_TOLERANCE_S = 60
REQUIRED = ["iss", "sub", "aud", "exp", "iat"]
MAX_SUBJECT_LENGTH = 191
# The public members of a key. Private ones would be checked, or n be factored by d, which stops the whole process
# for hours if they are long.
PUBLIC_MEMBERS = ("kty", "use", "alg", "kid", "n", "e", "crv", "x", "y")
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 16_384


class InvalidIdToken(Exception):
    """The token does not prove who signs in. The text may be shown to an Admin."""


def verify_id_token(token: str, keys: Any, *, issuer: str, client_id: str, nonce: str) -> dict[str, Any]:
    """Return the claims of a valid token. `keys` is the provider's JWK set. Raises InvalidIdToken."""
    try:
        header = jwt.get_unverified_header(token)
        if header.get("alg") not in ALGORITHMS:
            raise InvalidIdToken(f"The ID token is signed with {header.get('alg')!r}, which is not accepted.")
        claims: dict[str, Any] = jwt.decode(
            token,
            _find_key(keys, header),
            algorithms=[header["alg"]],
            audience=client_id,
            issuer=issuer,
            leeway=CLOCK_TOLERANCE_S,
            options={"require": REQUIRED},
        )
    except jwt.PyJWTError as error:
        raise InvalidIdToken(f"The ID token is not valid: {error}.") from None
    audience = claims["aud"]
    authorized = claims.get("azp")
    if authorized != client_id and (authorized is not None or (isinstance(audience, list) and len(audience) > 1)):
        raise InvalidIdToken("The ID token is meant for another client (azp).")
    if not compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
        raise InvalidIdToken("The ID token belongs to another sign-in (nonce).")
    subject = claims["sub"]
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT_LENGTH:
        raise InvalidIdToken(f"The ID token's subject must have 1 to {MAX_SUBJECT_LENGTH} characters.")
    return claims


def _find_key(keys: Any, header: dict[str, Any]) -> jwt.PyJWK:
    """Return the key that the token's header names, or the only key if it names none."""
    listed = keys.get("keys") if isinstance(keys, dict) else None
    usable = [
        key
        for key in (listed if isinstance(listed, list) else [])
        if isinstance(key, dict)
        and key.get("kty") in ("RSA", "EC", "OKP")
        and key.get("use", "sig") == "sig"
        and key.get("alg", header["alg"]) == header["alg"]
        and ("kid" not in header or key.get("kid") == header["kid"])
    ]
    if len(usable) != 1:
        raise InvalidIdToken("The provider publishes no key that fits the ID token.")
    key = {name: usable[0][name] for name in PUBLIC_MEMBERS if name in usable[0]}
    if key["kty"] == "RSA" and not MIN_RSA_BITS <= _modulus_bits(key) <= MAX_RSA_BITS:
        raise InvalidIdToken(
            f"The provider's RSA key must have {MIN_RSA_BITS:,} to {MAX_RSA_BITS:,} bits, in the member n."
        )
    return jwt.PyJWK(key, algorithm=header["alg"])


def _modulus_bits(key: dict[str, Any]) -> int:
    """Return the number of bits of an RSA key's modulus. Raises InvalidIdToken."""
    try:
        return int.from_bytes(base64url_decode(key["n"])).bit_length()
    except (KeyError, TypeError, ValueError):
        raise InvalidIdToken("The provider's RSA key has no valid member n.") from None
