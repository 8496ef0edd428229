"""Speak as a phone: a vocabulary for tests over the phone simulator, which runs as a real process.

    from tests.phones import answer, busy, ignore, decline, voicemail

    def test_the_second_technician_takes_the_job(sim):
        sim.phone("+16025550101").will(ignore())
        ann = sim.phone("+16025550102").will(answer(press="1"))
        ...submit a form...
        ann.rings(within=5).ended("completed")
        assert sim.max_simultaneous("+16025550100") == 1

    def test_by_hand(sim):
        call = sim.phone("+16025550101").rings(within=5)   # unscripted phones ring until told otherwise
        call.answer().hears("press 1 to accept")
        call.press("1").hears("the job is yours")
        call.hang_up().ended("completed")

The fixture `sim` is known to every test. It is reset before each test and fails the test if the simulator
complained about what our code sent it (`sim.forgive()` where that is meant). Give our code `sim.base_url`,
`sim.account_sid` and `sim.auth_token`; any caller number counts as owned unless `numbers` says otherwise.
`speed` is simulated seconds per real second: at 20, ringing 3 s takes 0.15 s. With
`Simulator.start(clock="manual")` time stands still until `sim.advance(seconds)`.

Phones without a script are operated manually, and since people do not get faster with time, they may ring and keep
a prompt waiting for two real seconds at least. To test that nobody answers or presses, script them: `ignore()`,
`answer()`.

What phones do (`will` takes several: one per call, the last one stays):
    answer(after=1, press="1")  pick up; the key comes after the prompt
    answer(press="1", when_heard="press 1")   answer(press_after=4)   answer(hang_up_after=2)
    answer(hang_up_during="there is a job")   answer(hang_up_when_heard=...)   answer(then_hang_up=True)
    ignore()  busy()  decline()  fails(error_code)  voicemail()  gives_up()  manual()  refused(21211)
    screens("connect", press="1", decide_after=12)  screens("hang_up")  screens("voicemail")
    mix((3, answer(press="1")), (1, ignore()))
What goes wrong (each for the next request or callback, or `times=None` for always, `to=` one number ...):
    sim.lose_callbacks(), duplicate_callbacks(), delay_callbacks(seconds), reorder_callbacks()
    sim.answer_429(retry_after=None), answer_500(), answer_503(), time_out_before_creating(),
    time_out_after_creating(), reset_before_creating(), reset_after_creating(), slow_create(seconds),
    callbacks_before_create_returns(), list_lags(seconds), lose_webhooks(purpose),
    slow_webhooks(seconds), filter_texts(code), overlap_callbacks(); sim.heal() ends them all.
All waiting ends at a deadline in real seconds, and a failure shows the whole story of the call.
"""

from .behaviours import (
    Behaviour,
    answer,
    busy,
    decline,
    fails,
    gives_up,
    ignore,
    manual,
    mix,
    refused,
    screens,
    voicemail,
)
from .fixtures import sim, sim_process
from .handset import Phone, PhoneCall
from .simulator import ACCOUNT_SID, AUTH_TOKEN, Simulator

__all__ = [
    "ACCOUNT_SID",
    "AUTH_TOKEN",
    "Behaviour",
    "Phone",
    "PhoneCall",
    "Simulator",
    "answer",
    "busy",
    "decline",
    "fails",
    "gives_up",
    "ignore",
    "manual",
    "mix",
    "refused",
    "screens",
    "sim",
    "sim_process",
    "voicemail",
]
