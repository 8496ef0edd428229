"""The tips of `make up` have what its reader has to type."""

import pytest

from accounts import demo_logins
from dispatch.capacity.models import ProviderAccount
from dispatch.dev.demo import hints, seed
from tests.support import factories as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def company(tmp_path, monkeypatch):
    company = make.organization(slug=seed.MAIN_SLUG)
    demo_logins.create_demo_logins(company)
    (tmp_path / "key").write_text("dk_demo")
    monkeypatch.setattr(seed, "key_file", lambda: tmp_path / "key")
    return company


def test_the_tips_have_the_key_and_the_token_of_the_simulated_account(company):
    make.number(company)
    tips = "\n".join(hints.lines())
    assert "export DISPATCH_KEY=dk_demo" in tips
    assert f"TWILIO_AUTH_TOKEN={ProviderAccount.objects.of(company).get().auth_token}" in tips


def test_a_company_without_an_account_has_no_token_to_show(company):
    tips = "\n".join(hints.lines())
    assert "DISPATCH_KEY" in tips
    assert "TWILIO_AUTH_TOKEN" not in tips
