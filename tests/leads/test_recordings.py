"""Recordings that calls play: uploaded by form and API, fetched by the provider, and deleted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import requests
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import IntegrityError, connection, transaction
from django.urls import reverse

from accounts.models import User
from dispatch.core import clock
from dispatch.leads import retention
from dispatch.leads.models import Campaign, KeyBranch, Lead, Recording, RecordingFile
from dispatch.leads.rules import audio
from dispatch.leads.services import recordings
from dispatch.telephony import number_check_calls
from dispatch.telephony.models import Call
from tests.api.client import Api
from tests.harness.calls import place_call
from tests.harness.leads import Floor
from tests.leads.test_scripts_of_campaigns import form
from tests.phones import Simulator, answer, manual, voicemail
from tests.support import factories as make
from tests.support.audio import mp3, mu_law, wav
from tests.support.factories import browser
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ANN = "+16025550101"


@pytest.fixture
def floor(twilio_floor: Floor) -> Floor:
    return twilio_floor


@pytest.fixture
def api(floor: Floor) -> Api:
    return Api(key=make.api_key(floor.organization, "leads:write", "read", "manage"))


def add(floor: Floor, content: bytes = b"", name: str = "welcome.wav") -> Recording:
    return recordings.save_recording(recordings.from_file(floor.organization.pk, content or wav(), name))


def uses(floor: Floor, **fields: Any) -> Campaign:
    """The campaign with these fields, and the recordings among them."""
    Campaign.objects.filter(pk=floor.campaign.pk).update(**fields)
    campaign = Campaign.objects.get(pk=floor.campaign.pk)
    recordings.update_uses(campaign)
    return campaign


def branch(floor: Floor, key: str, **fields: Any) -> KeyBranch:
    return KeyBranch.objects.create(
        organization=floor.organization, campaign=floor.campaign, key=key, action="play", **fields
    )


def ended(lead: int) -> Lead:
    wait_until(lambda: Lead.objects.filter(pk=lead).exclude(status="processing").exists())
    return Lead.objects.get(pk=lead)


def upload(api: Api, content: bytes, name: str = "welcome.wav", **fields: str) -> Any:
    data = {"file": SimpleUploadedFile(name, content, "audio/mpeg"), **fields}
    return api.client.post("/api/v1/recordings/", data, headers=api.headers)


# --- In calls


@pytest.mark.parametrize(("content", "kind"), [(mu_law(2), "audio/wav"), (mp3(), "audio/mpeg")])
def test_a_lead_hears_the_recording_and_presses_a_key(
    floor: Floor, sim: Simulator, content: bytes, kind: str
) -> None:
    uses(floor, recording=add(floor, content), script="Not read.")
    KeyBranch.objects.create(
        organization=floor.organization, campaign=floor.campaign, key="1", say="Thanks.", disposition="wants_quote"
    )
    sim.phone(ANN).will(answer(0.5, "1"))
    (lead,) = floor.add(ANN)
    floor.work()
    row = ended(lead)
    assert (row.outcome, row.disposition) == ("answered", "wants_quote")
    (call,) = sim.calls_to(ANN)
    assert "Not read." not in call.said
    assert "Thanks." in call.said
    played = call.now["plays"][0]
    assert (played["status"], played["content_type"], played["bytes"]) == (200, kind, len(content))


def test_a_key_during_the_recording_counts(floor: Floor, sim: Simulator) -> None:
    uses(floor, recording=add(floor, wav(30)))
    sim.phone(ANN).will(manual())
    (lead,) = floor.add(ANN)
    floor.work()
    person = sim.phone(ANN).rings().answer()
    person.hears("[plays").press("9").hears("You will not be called again.")
    assert not person.now["plays"][0]["complete"]
    assert ended(lead).outcome in ("answered", "do_not_call")


def test_a_key_plays_a_recording(floor: Floor, sim: Simulator) -> None:
    branch(floor, "2", say="Listen.", recording=add(floor), disposition="heard")
    uses(floor)
    sim.phone(ANN).will(answer(0.5, "2"))
    (lead,) = floor.add(ANN)
    floor.work()
    assert ended(lead).disposition == "heard"
    (call,) = sim.calls_to(ANN)
    wait_until(lambda: call.now["over"])
    assert call.said.index("Listen.") < call.said.index("[plays")
    assert [played["complete"] for played in call.now["plays"]] == [True]


def test_a_recording_is_left_on_voicemail(floor: Floor, sim: Simulator) -> None:
    uses(floor, detect_machines=True, voicemail_recording=add(floor), voicemail="")
    sim.phone(ANN).will(voicemail())
    (lead,) = floor.add(ANN)
    floor.work()
    assert ended(lead).last_outcome == "voicemail"
    (call,) = sim.calls_to(ANN)
    assert call.now["answered_by"] == "machine_end_beep"
    assert [played["complete"] for played in call.now["plays"]] == [True]


def test_a_campaign_with_only_a_recording_has_words(floor: Floor, sim: Simulator) -> None:
    sim.phone(ANN).will(answer(0.5, "9"))
    campaign = uses(floor, script="")
    assert not campaign.has_words
    (lead,) = floor.add(ANN)
    assert floor.work() == 0
    assert floor.lead(lead).reason == "no_script"
    assert uses(floor, recording=add(floor)).has_words
    floor.step("leads_lifted")
    assert floor.work() == 1


def test_the_provider_fetches_a_recording_elsewhere(floor: Floor, sim: Simulator, app_url: str) -> None:
    elsewhere = f"{app_url}{recordings.path_of(add(floor))}"
    uses(floor, recording=recordings.save_recording(recordings.from_url(floor.organization.pk, elsewhere)))
    sim.phone(ANN).will(answer(0.5, "9"))
    (lead,) = floor.add(ANN)
    floor.work()
    ended(lead)
    assert sim.calls_to(ANN)[0].now["plays"][0]["url"] == elsewhere


def test_a_recording_that_is_gone_is_the_providers_error(floor: Floor, sim: Simulator, app_url: str) -> None:
    """An address elsewhere may fail at any time. The provider continues with the fallback document."""
    gone = recordings.save_recording(
        recordings.from_url(floor.organization.pk, f"{app_url}/telephony/recordings/1/x.wav")
    )
    uses(floor, recording=gone)
    sim.phone(ANN).will(answer(0.5))
    (lead,) = floor.add(ANN)
    floor.work()
    assert ended(lead).last_outcome == "failed", "the person heard an apology"
    (call,) = sim.calls_to(ANN)
    assert any(problem.startswith("11200") for problem in call.now["problems"])
    assert call.now["plays"][0]["status"] == 404


def test_a_page_instead_of_a_recording_is_the_providers_error(floor: Floor, sim: Simulator, app_url: str) -> None:
    page = recordings.save_recording(recordings.from_url(floor.organization.pk, f"{app_url}/healthz"))
    uses(floor, recording=page)
    sim.phone(ANN).will(answer(0.5))
    (lead,) = floor.add(ANN)
    floor.work()
    assert ended(lead).last_outcome == "failed", "the person heard an apology"
    (call,) = sim.calls_to(ANN)
    assert any(problem.startswith("12300") for problem in call.now["problems"])
    assert any("12300" in complaint for complaint in sim.complaints())
    sim.forgive()


def test_the_preview_plays_the_recording(floor: Floor, sim: Simulator) -> None:
    number_check_calls.register()
    recording = add(floor)
    uses(floor, recording=recording)
    branch(floor, "2", recording=recording)
    person = make.admin(floor.organization)
    User.objects.filter(pk=person.pk).update(phone="+16025550199")
    page = browser(User.objects.get(pk=person.pk))
    url = reverse("admin:leads_campaign_preview_voice", args=[floor.campaign.pk])
    shown = page.get(url).content.decode()
    assert f'<audio controls preload="none" src="{recordings.path_of(recording)}"' in shown
    assert "&lt;Play&gt;" in shown
    page.post(url)
    place_call(Call.objects.latest("pk").pk)
    call = sim.phone("+16025550199").rings().answer()
    call.hears("This is a preview").hears("[plays").press("2")
    wait_until(lambda: call.now["over"])
    assert [played["status"] for played in call.now["plays"]] == [200, 200]


# --- The address


def test_the_file_is_served_at_its_address_only(floor: Floor, app_url: str) -> None:
    content = mp3()
    recording = add(floor, content, "welcome.mp3")
    response = requests.get(recordings.address_of(recording), timeout=30)
    assert (response.status_code, response.content) == (200, content)
    assert response.headers["Content-Type"] == "audio/mpeg"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Cache-Control"] == "public, max-age=3600"
    assert "Set-Cookie" not in response.headers
    etag = {"If-None-Match": response.headers["ETag"]}
    assert requests.get(recordings.address_of(recording), headers=etag, timeout=30).status_code == 304
    head = requests.head(recordings.address_of(recording), timeout=30)
    assert (head.status_code, head.headers["Content-Length"]) == (200, str(len(content)))


def test_no_other_address_has_the_file(floor: Floor, app_url: str) -> None:
    recording, other = add(floor), add(floor, wav(3))
    signature = recordings.path_of(recording).split("/")[-1]
    for pk, name in [
        (other.pk, signature), (recording.pk, "x.wav"), (recording.pk, f"{'0' * 64}.wav"), (2**63, signature),
        (recording.pk, recordings.path_of(other).split("/")[-1]),
        (recording.pk, signature.replace(".wav", ".html")), (recording.pk, signature.replace(".wav", ".mp3")),
    ]:  # fmt: skip
        assert requests.get(f"{app_url}/telephony/recordings/{pk}/{name}", timeout=30).status_code == 404


def test_a_deleted_recording_is_gone(floor: Floor, app_url: str) -> None:
    recording = add(floor)
    address = recordings.address_of(recording)
    recordings.delete_recording(recording.pk)
    assert requests.get(address, timeout=30).status_code == 404
    assert not RecordingFile.objects.exists()


# --- The API


def test_a_recording_is_added_used_and_deleted_with_the_api(floor: Floor, api: Api) -> None:
    made = upload(api, mp3(), "Fall welcome.mp3")
    assert made.status_code == 201, made.content
    body = made.json()
    assert (body["name"], body["content_type"], body["is_used"]) == ("Fall welcome.mp3", "audio/mpeg", False)
    new = {"code": "fall", "name": "Fall", "pool": floor.pool.code, "recording": body["id"],
           "branches": [{"key": "1", "action": "play", "recording": body["id"]}]}  # fmt: skip
    campaign = api.post("campaigns/", new).json()
    assert (campaign["recording"], campaign["branches"][0]["recording"]) == (body["id"], body["id"])
    shown = api.get(f"recordings/{body['id']}/").json()
    assert (shown["campaign"], shown["is_used"]) == (campaign["id"], True)
    refused = api.delete(f"recordings/{body['id']}/")
    assert (refused.status_code, "Fall plays this recording" in refused.json()["detail"]) == (409, True)
    path = f"campaigns/{campaign['id']}/"
    assert api.patch(path, {"recording": None, "script": "Hello."}).json()["recording"] is None
    assert api.delete(f"recordings/{body['id']}/").status_code == 409, "its branch still plays it"
    assert api.patch(path, {"branches": []}).status_code == 200
    assert api.get(f"recordings/{body['id']}/").json()["is_used"] is False
    assert api.get(f"recordings/{body['id']}/audio/").content == mp3()
    assert api.delete(f"recordings/{body['id']}/").status_code == 204
    assert api.get(f"recordings/{body['id']}/").status_code == 404


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"This is a text.", audio.NOT_AUDIO),
        (wav() + bytes(audio.MAX_BYTES), audio.TOO_LARGE),
        (wav()[:-100], audio.CUT_OFF),
        (b"", "The submitted file is empty."),
    ],
)
def test_the_api_refuses_what_no_call_can_play(floor: Floor, api: Api, content: bytes, problem: str) -> None:
    refused = upload(api, content, "welcome.mp3")
    assert (refused.status_code, refused.json()["errors"][0]["detail"]) == (400, problem)
    assert refused.json()["errors"][0]["field"].startswith("file")
    assert not Recording.objects.exists()


def test_a_very_large_upload_is_refused_unread(floor: Floor, api: Api, app_url: str) -> None:
    files = {"file": ("x.wav", bytes(7 * 2**20))}
    try:
        response = requests.post(f"{app_url}/api/v1/recordings/", headers=api.headers, files=files, timeout=30)
    except requests.ConnectionError:
        return  # closed while it was being sent
    assert response.status_code == 413


@pytest.mark.parametrize(
    "url",
    ["ftp://www.example.com/x.wav", "https://10.0.0.5/x.wav", "https://169.254.169.254/x", "https://u:p@example.com/x",
     "https://www.example.com:22/x.wav", "javascript:alert(1)", "https://www.example.com/x.wav#1", "x", ""],
)  # fmt: skip
def test_addresses_that_are_not_public_are_refused(floor: Floor, api: Api, url: str) -> None:
    refused = api.post("recordings/", {"url": url})
    assert refused.status_code == 400, refused.content
    assert not Recording.objects.exists()


@pytest.mark.parametrize(
    ("url", "is_allowed"),
    [
        ("https://www.example.com/x.wav", True),
        ("http://www.example.com/x.wav", False),
        ("https://localhost/x.wav", False),
        ("https://files.internal/x.wav", False),
        ("https://intranet/x.wav", False),
        ("https://localhost./x.wav", False),
        ("https://files.internal./x.wav", False),
    ],
)
def test_addresses_are_https_and_public_in_production(settings: Any, url: str, is_allowed: bool) -> None:
    settings.DEVELOPMENT = False
    try:
        recordings.from_url(1, url)
    except recordings.ValidationError:
        assert not is_allowed
    else:
        assert is_allowed


def test_the_api_needs_a_file_or_an_address(floor: Floor, api: Api) -> None:
    assert api.post("recordings/", {}).status_code == 400
    assert upload(api, wav(), url="https://www.example.com/x.wav").status_code == 400
    assert api.post("recordings/", {"file": "data:audio/wav;base64,UklGRg=="}).status_code == 400


def test_recordings_of_others_are_not_found(floor: Floor, api: Api) -> None:
    other = make.organization("Other")
    foreign = recordings.save_recording(recordings.from_file(other.pk, wav(), "secret.wav"))
    for path in (f"recordings/{foreign.pk}/", f"recordings/{foreign.pk}/audio/"):
        assert api.get(path).status_code == 404
    assert api.delete(f"recordings/{foreign.pk}/").status_code == 404
    branches = [{"key": "1", "action": "play", "recording": foreign.pk}]
    for changes in ({"recording": foreign.pk}, {"voicemail_recording": foreign.pk}, {"branches": branches}):
        refused = api.patch(f"campaigns/{floor.campaign.pk}/", changes)
        assert refused.status_code == 400
        assert "secret" not in refused.content.decode()
    foreign.refresh_from_db()
    assert foreign.campaign_id is None


def test_a_recording_that_was_just_deleted_is_not_found(
    floor: Floor, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = recordings.delete_recording
    monkeypatch.setattr(recordings, "delete_recording", lambda pk: (delete(pk), delete(pk)))
    assert api.delete(f"recordings/{add(floor).pk}/").status_code == 404


def test_a_recording_belongs_to_one_campaign(floor: Floor, api: Api) -> None:
    recording = add(floor)
    second = floor.add_campaign()
    assert api.patch(f"campaigns/{floor.campaign.pk}/", {"recording": recording.pk}).status_code == 200
    refused = api.patch(f"campaigns/{second.pk}/", {"recording": recording.pk})
    assert (refused.status_code, "another campaign" in refused.content.decode()) == (400, True)


def test_a_reader_adds_and_deletes_nothing(floor: Floor) -> None:
    reader = Api(key=make.api_key(floor.organization, "read"))
    recording = add(floor)
    assert upload(reader, wav()).status_code == 403
    assert reader.delete(f"recordings/{recording.pk}/").status_code == 403


def test_an_organization_has_a_limited_number_of_recordings(
    floor: Floor, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "MAX_RECORDINGS", 1)
    assert upload(api, wav()).status_code == 201
    assert "Delete some" in upload(api, wav()).content.decode()
    assert Recording.objects.count() == 1


def test_additions_at_once_keep_the_limit(floor: Floor, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "MAX_RECORDINGS", 1)
    with transaction.atomic():
        add(floor)
        second = _begin(lambda: upload(api, wav()).status_code)
    assert second() == 400
    assert Recording.objects.count() == 1


def test_a_recording_is_deleted_once(floor: Floor, api: Api) -> None:
    recording = add(floor)
    with transaction.atomic():
        recordings.delete_recording(recording.pk)
        second = _begin(lambda: api.delete(f"recordings/{recording.pk}/").status_code)
    assert second() == 404


def _begin(request: Callable[[], int]) -> Callable[[], int]:
    """Start a request in another thread until it ends or waits for a lock; return a function that awaits it."""
    found: list[int] = []

    def run() -> None:
        try:
            found.append(request())
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: _waits_for_a_lock() or not thread.is_alive())

    def result() -> int:
        thread.join()
        return found[0]

    return result


# --- The form


def test_the_form_uploads_a_recording_for_each_place(floor: Floor) -> None:
    page = browser(make.admin(floor.organization))
    row = {"key": "1", "action": "play", "ring_s": "20", "talk_limit_s": "60", "id": ""}
    rows = {f"branches-0-{name}": value for name, value in row.items()}
    url = reverse("admin:leads_campaign_add")
    without = page.post(url, form(floor, script="Hi.", **rows, **{"branches-TOTAL_FORMS": "1"}))
    assert "Add a recording." in without.content.decode()
    fields = {
        **rows, "branches-TOTAL_FORMS": "1", "branches-0-recording": SimpleUploadedFile("key.wav", wav(3)),
        "recording": SimpleUploadedFile("welcome.mp3", mp3()), "script": "",
        "voicemail_recording-url": "https://www.example.com/voicemail.mp3",
    }  # fmt: skip
    response = page.post(url, form(floor, **fields))
    assert response.status_code == 302, response.content.decode()
    campaign = Campaign.objects.get(code="fall")
    assert campaign.recording.name == "welcome.mp3"
    assert campaign.voicemail_recording.url == "https://www.example.com/voicemail.mp3"
    assert campaign.branches.get().recording.duration_s == 3
    assert set(campaign.recordings.values_list("unused_at", flat=True)) == {None}
    shown = page.get(reverse("admin:leads_campaign_change", args=[campaign.pk])).content.decode()
    assert 'enctype="multipart/form-data"' in shown
    for recording in campaign.recordings.filter(url=""):
        assert f'src="{recordings.path_of(recording)}"' in shown


def test_the_form_keeps_replaces_and_removes_a_recording(floor: Floor) -> None:
    page = browser(make.admin(floor.organization))
    old = add(floor)
    uses(floor, recording=old, is_paused=True)
    url = reverse("admin:leads_campaign_change", args=[floor.campaign.pk])
    assert page.post(url, form(floor)).status_code == 302
    assert Campaign.objects.get(pk=floor.campaign.pk).recording == old
    assert page.post(url, form(floor, recording=SimpleUploadedFile("new.wav", wav(2)))).status_code == 302
    assert Campaign.objects.get(pk=floor.campaign.pk).recording.name == "new.wav"
    old.refresh_from_db()
    assert old.unused_at is not None
    assert page.post(url, form(floor, **{"recording-remove": "on"})).status_code == 302
    assert Campaign.objects.get(pk=floor.campaign.pk).recording is None
    assert not Recording.objects.filter(unused_at=None).exists()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"recording": SimpleUploadedFile("x.mp3", b"A text.")}, audio.NOT_AUDIO),
        ({"recording": SimpleUploadedFile("x.wav", wav()[:-9])}, audio.CUT_OFF),
        ({"recording-url": "https://10.0.0.1/x.wav"}, "private"),
        ({"recording-url": f"https://a.example.com/{'x' * 2000}"}, "at most 2000"),
        ({"recording": SimpleUploadedFile("x.wav", wav()), "recording-url": "https://a.example.com/"}, "not both"),
    ],
)
def test_the_form_says_what_is_wrong_with_a_recording(floor: Floor, fields: dict[str, Any], problem: str) -> None:
    page = browser(make.admin(floor.organization))
    response = page.post(reverse("admin:leads_campaign_add"), form(floor, script="Hi.", **fields))
    assert (response.status_code, problem in response.content.decode()) == (200, True)
    assert not Recording.objects.exists()
    assert not Campaign.objects.filter(code="fall").exists()


def test_the_form_says_that_there_are_too_many_recordings(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "MAX_RECORDINGS", 1)
    add(floor)
    page = browser(make.admin(floor.organization))
    sent = form(floor, script="Hi.", recording=SimpleUploadedFile("x.wav", wav()))
    response = page.post(reverse("admin:leads_campaign_add"), sent)
    assert (response.status_code, "Delete some" in response.content.decode()) == (200, True)
    assert not Campaign.objects.filter(code="fall").exists()


def test_a_form_that_is_refused_stores_no_recording(floor: Floor) -> None:
    page = browser(make.admin(floor.organization))
    wrong = form(floor, recording=SimpleUploadedFile("x.wav", wav()), variables="no-name")
    assert page.post(reverse("admin:leads_campaign_add"), wrong).status_code == 200
    assert not Recording.objects.exists()


# --- Erasure


def test_recordings_are_erased_with_their_campaign(floor: Floor) -> None:
    recording = add(floor)
    branch(floor, "2", recording=add(floor))
    campaign = uses(floor, recording=recording, voicemail_recording=recording)
    assert campaign.recordings.count() == 2
    campaign.delete()
    assert not Recording.objects.exists()
    assert not RecordingFile.objects.exists()


def test_unused_recordings_are_deleted_after_a_week(floor: Floor) -> None:
    used, unused, other = add(floor), add(floor), add(floor)
    uses(floor, recording=used)
    # as after a crash before the uses were written
    Recording.objects.filter(pk=used.pk).update(unused_at=clock.now())
    clock.travel(86_400 * 8)
    Recording.objects.filter(pk=other.pk).update(unused_at=clock.now())
    before = clock.now() - timedelta(days=retention.RECORDING_DAYS)
    assert recordings.delete_unused(floor.organization.pk, before, 100) == 1
    assert set(Recording.objects.values_list("pk", flat=True)) == {used.pk, other.pk}
    assert not Recording.objects.filter(pk=unused.pk).exists()


def test_a_recording_that_a_campaign_begins_to_use_is_not_deleted(floor: Floor, api: Api) -> None:
    """Whichever comes first wins, and the other gets an error."""
    recording = add(floor)
    with transaction.atomic():
        recordings.delete_recording(recording.pk)
        use = _begin(lambda: api.patch(f"campaigns/{floor.campaign.pk}/", {"recording": recording.pk}).status_code)
    assert use() == 400
    assert Campaign.objects.get(pk=floor.campaign.pk).recording is None


def _waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


def test_the_database_keeps_a_recording_that_is_used(floor: Floor) -> None:
    recording = add(floor)
    uses(floor, recording=recording)
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM leads_recordingfile")
        cursor.execute("DELETE FROM leads_recording")
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
