"""The demo's forms are complete and varied, and the front end sends each of them."""

import io
import threading
from collections import Counter

import pytest

from accounts.models import Organization
from dispatch.capacity.models import OutboundNumber
from dispatch.core.zips import zip_position
from dispatch.dev.demo import data, phones
from dispatch.dev.demo.client import Answer, FrontEnd
from dispatch.dev.demo.lines import FILE, Line, load
from dispatch.dev.demo.printing import Printer
from dispatch.dev.simulator.handsets import check_behaviour
from dispatch.jobs.geocoding import zip_guesses
from notifications.services import alert_reach
from tests.support.waiting import PATIENCE, wait_until


def test_there_are_enough_forms_and_many_ways_to_fail():
    lines = load()
    kinds = Counter(line.expect for line in lines)
    assert len(lines) >= 45
    assert len({line.ref for line in lines}) == len(lines)
    assert kinds["job"] >= 34
    assert len([line for line in lines if line.expect.startswith("rejected")]) >= 12
    assert {"pending:no_position", "pending:nobody_near", "repeat", "rejected:401", "rejected:422"} <= set(kinds)
    assert {"late:call_back", "late:text"} <= set(kinds)


def test_each_late_answer_has_one_technician_who_serves_its_town():
    late = [person for person in data.TECHNICIANS if person.phone_habit == "answers_late"]
    for line in load():
        if line.expect == "job" or line.late_by:
            near = [person for person in late if f"AZ {person.zip_code}" in line.body.get("address", "")]
            assert len(near) == (1 if line.late_by else 0), line.ref


def test_addresses_have_real_zip_codes_unless_intended():
    for line in load():
        if line.expect == "job" and "lat" not in line.body:
            (guess, *_) = zip_guesses(line.body["address"])
            assert zip_position(guess.code)[2] == guess.state == "AZ", line.ref


def test_technicians_live_where_there_is_a_zip_code_and_every_habit_is_known():
    for person in (*data.TECHNICIANS, *data.OTHER_TECHNICIANS):
        assert zip_position(person.zip_code), person.name
        check_behaviour(phones.BEHAVIOURS[person.phone_habit])
        assert set(person.skills.split()) <= {*data.SKILLS, *data.OTHER_SKILLS}
    numbers = [person.phone for person in data.TECHNICIANS]
    assert len(set(numbers)) == len(numbers) >= 24


def test_phone_behavior_depends_on_the_seed_only():
    assert phones.drawn_handsets(7) == phones.drawn_handsets(7)
    assert phones.drawn_handsets(7) != phones.drawn_handsets(8)
    for behaviours in phones.drawn_handsets(7).values():
        assert all(check_behaviour(one)["do"] != "mix" for one in behaviours)


def test_a_file_that_is_wrong_is_named_with_the_line(tmp_path):
    path = tmp_path / "forms.jsonl"
    first = FILE.read_text().splitlines()[0]
    for second, wrong in (
        ('{"ref": "2", "expect": "job", "colour": "blue"}', "line 2: unknown: colour"),
        ('{"ref": "2"}', "line 2: missing: expect"),
        ('{"ref": "2", "expect": "rejected"}', "line 2: expect is 'rejected', which is not one of"),
        ("[]", "line 2: not a JSON object"),
        ("nothing", "line 2: Expecting value"),
    ):
        path.write_text(f"{first}\n{second}\n")
        with pytest.raises(ValueError, match=rf"^forms\.jsonl, {wrong}"):
            load(path)
    for content, wrong in ((b"", "contains no forms"), (b"\xff\xfe", "is not a UTF-8 text")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"^forms\.jsonl {wrong}"):
            load(path)


class Recorder:
    """Stand-in for the HTTP client that answers after a delay."""

    def __init__(self):
        self.sent = []
        self.hold = threading.Event()

    def submit(self, line):
        if line.ref == "first":
            self.hold.wait(PATIENCE)
        self.sent.append(line.ref)
        return Answer(202, {"id": 1}, 0.0)


def test_front_end_sends_all_lines_once_and_repeats_after_the_first():
    lines = [Line("other", "job"), Line("second", "repeat", idempotency_key="k", follows="k")]
    lines += [Line("first", "job", idempotency_key="k")]
    client, told = Recorder(), []
    visitors = FrontEnd(client, lines, on_answer=lambda line, answer: told.append(line.ref), seed=1, every_s=0.001)
    visitors.start()
    wait_until(lambda: "other" in client.sent)
    assert "second" not in client.sent
    client.hold.set()
    wait_until(lambda: visitors.finished)
    assert client.sent.index("second") > client.sent.index("first")
    assert sorted(told) == ["first", "other", "second"]


def test_output_has_no_color_without_a_terminal():
    out = io.StringIO()
    Printer(out).event(3.24, "07", "a very long label that will not fit here", "Đặng accepted", "good")
    assert out.getvalue() == "    3.2 s   07  a very long label that will n…  Đặng accepted\n"


def test_the_demo_organization_is_phoenix(db):
    from dispatch.dev.demo import seed

    main = seed.seed()
    assert seed.seed() == main
    assert Organization.objects.count() == 2
    assert len(phones.accounts()) == 2


def test_alerts_of_the_demo_organization_reach_somebody_by_phone(db):
    from dispatch.dev.demo import seed

    assert alert_reach.load_reach(seed.seed().pk).by_phone == ("Noor Haddad",)


def test_the_demo_can_be_run_again_and_again_beside_the_demo_organization(db):
    from dispatch.dev.demo import run, seed

    seed.seed()
    for n in (1, 2):
        run.end_earlier_runs()
        made = seed.run_organization(f"{run.SLUG}{n}", run.POLICY)
        assert OutboundNumber.objects.of(made).filter(is_paused=False).count() == len(data.RUN_LINES)
        owners = [
            account
            for account in phones.accounts()
            if data.RUN_LINES[0] in {number["number"] for number in account["numbers"]}
        ]
        assert len(owners) == 1, "a call-back reaches this run"
    assert OutboundNumber.objects.filter(phone=data.RUN_LINES[0], is_paused=True).count() == 1
