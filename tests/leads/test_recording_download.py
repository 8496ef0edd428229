"""A recording's file is returned as what it is, with the Accept header that clients made from the schema send."""

from __future__ import annotations

import pytest

from tests.api.client import Api
from tests.harness.leads import Floor
from tests.leads.test_recordings import api, floor, mp3, upload
from tests.support import factories

__all__ = ["api", "floor"]


@pytest.mark.parametrize(
    "accept",
    [
        "audio/mpeg",
        "audio/wav, audio/mpeg, application/problem+json",
        "audio/*",
        "*/*",
        "application/json",
        "text/html",
    ],
)
def test_the_file_is_returned_for_every_accept_header(floor: Floor, api: Api, accept: str) -> None:
    path = f"recordings/{upload(api, mp3()).json()['id']}/audio/"
    answer = api.get(path, Accept=accept)
    assert (answer.status_code, answer["Content-Type"], answer.content) == (200, "audio/mpeg", mp3())


def test_errors_of_the_file_are_problems(floor: Floor, api: Api) -> None:
    unknown = api.get("recordings/999999/audio/", Accept="audio/mpeg")
    assert (unknown.status_code, unknown["Content-Type"]) == (404, "application/problem+json")
    assert unknown.json()["type"] == "urn:dispatch:problem:not_found"
    own = Api(key=factories.api_key(floor.organization, "submissions:write"))
    refused = own.get("recordings/999999/audio/", Accept="audio/mpeg")
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:dispatch:problem:permission_denied")
