"""Two requests with the same version at the same time, on separate connections."""

from __future__ import annotations

from functools import partial

import pytest
from django.db import transaction

from dispatch.technicians.models import Skill
from tests.api.client import Api
from tests.core.threads import Elsewhere
from tests.support import factories as make


@pytest.mark.django_db(transaction=True)
def test_one_of_two_concurrent_edits_with_the_same_version_wins():
    pool = make.pool(organization := make.organization())
    admin = make.admin(organization)
    read = Api(user=admin).get(f"pools/{pool.pk}/")["ETag"]

    answers: list[int] = []

    def change(n: int) -> None:
        done = Api(user=admin).patch(f"pools/{pool.pk}/", {"concurrency": 20 + n}, If_Match=read)
        answers.append(done.status_code)

    for other in [Elsewhere(partial(change, n)) for n in range(2)]:
        other.finish()
    assert sorted(answers) == [200, 409]


@pytest.mark.django_db(transaction=True)
def test_edit_of_a_row_that_is_deleted_meanwhile_finds_none() -> None:
    admin = make.admin(organization := make.organization())
    skill = Skill.objects.create(organization=organization, name="Gas")
    path = f"skills/{skill.pk}/"
    read = Api(user=admin).get(path)["ETag"]
    answers: list[int] = []

    def edit() -> None:
        done = Api(user=admin).patch(path, {"name": "Gas fitting"}, If_Match=read)
        answers.append(done.status_code)

    with transaction.atomic():
        Skill.objects.filter(pk=skill.pk).delete()
        other = Elsewhere(edit)
        other.wait_for_lock()
    other.finish()
    assert answers == [404]
