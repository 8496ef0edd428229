"""Simulate a phone provider on this machine, used over HTTP like the real one.

    python -m dispatch.dev.simulator --port 4010 --config phones.json --seed 7 --speed 10

It serves Twilio's REST API for calls and messages under /2010-04-01/, sends Twilio's signed webhooks, and
simulates the people at the other end. It needs no database and no Django, and listens and calls on loopback only,
unless `--allow-remote-webhooks` is given.
It rejects what the provider would reject, and everything it does not know. Mistakes of the caller are also
recorded as *complaints*, which tests assert to be empty.

Time: all durations are simulated seconds, `--speed` of them per real second, or advanced explicitly (`--clock
manual`). Dates in responses are real dates. Delays of responses (faults `slow`, `timeout_*`, Retry-After) are
real.

Configuration (JSON, all keys optional; see config.py, handsets.py, messages.py, faults.py for the details):
    {"accounts": [{"sid": "AC...", "auth_token": "...", "calls_per_second": 1, "max_concurrent": null,
                   "max_requests": 100, "countries": ["+1"], "owns_any_number": false, "status": "active",
                   "type": "Full", "verified": [], "profile_approved": true, "region": "us1",
                   "api_keys": {"SK...": "secret"},
                   "text_segments_per_second": 0, "text_queue_s": 36000, "text_overflow": 21611,
                   "numbers": ["+16025550100", {"number": "+16025550199", "voice_url": "http://127.0.0.1/...",
                                                "sms_url": "...", "status_callback": "..."}],
                   "prices": {"per_minute": "0.0130", "per_segment": "0.0079", "currency": "USD", "after": 10}}],
     "handsets": {"default": {"do": "answer", "after": 3, "keys": [{"key": "1"}]}, "+16025550101": {"do": "ring"}},
     "texts": {"+16025550102": {"do": "undelivered", "error_code": 30003}},
     "faults": [{"kind": "lose", "probability": 0.1, "times": null}],
     "timing": {"accept": 0.2, "dial": 0.8, "ring_buffer": 0, "hang_up": 0, "machine_detection": 3,
                "characters_per_second": 15, "message_step": 0.5, "webhook_floor": 5, "hand_floor": 2},
     "keep_calls": 20000}

Control API (JSON; errors are {"error": text} with 400, 404 or 409):
    GET /control/state                    clock, speed, version of the last change, counts
    POST /control/reset                   clear calls, messages, scripts, faults, complaints
    GET /control/calls?to=&from=&phone=&status=&open=1&limit=&fields=   newest last, each with its full history:
                                          statuses with times, said, plays, keys, webhooks, problems,
                                          story;
                                          `fields=sid,to` returns only these
    GET /control/calls/{sid}
    POST /control/calls/{sid}/answer|press|say|hang_up|busy|reject|fail
                                          press: {"keys": "1"}; say: {"text"}; fail: {"error_code"}
    GET /control/messages?to=&from=
    GET /control/lines                    per caller number: open and live calls, and the maximum of both
    GET /control/creates                  per called number: create requests received, calls created
    GET /control/complaints               complaints, and all rejections; DELETE clears the complaints
    GET /control/faults; POST one; DELETE all, or /control/faults/{id}
    GET /control/handsets; PUT {number or "default": behavior or list}; DELETE /control/handsets/{number}
    GET /control/texts; PUT {number or "default": how texts end}
    GET /control/accounts; PUT one account (added or changed)
    GET /control/timing; PUT {"hang_up": 2, ...}   durations, until the next reset
    PUT /control/numbers                  {"account", "number", "voice_url", "sms_url", ...}
    POST /control/phones/{number}/call    {"to": one of the accounts' numbers, "keys": [...], "hang_up": {...}}
    POST /control/phones/{number}/text    {"to", "body"}
    GET /control/phones                   every phone: taken or not, behavior, latest calls and texts
    POST /control/phones/{number}/take|release   while a person controls a phone, it does nothing on its own
    GET /control/clock; POST {"advance": seconds}
    GET /control/changes?after=VERSION&wait=SECONDS   long poll
    GET /control/events                   the same as server-sent events

Where the provider's behavior is undocumented, the simulator does the following: a call that the API ends before
the answer is `canceled`; a declined call is `busy` with SIP 603; a document that no provider would accept makes
the call `failed`; an unreachable server ends it as `completed`; a cancel after the answer changes nothing; a
Play whose file cannot be fetched (11200) or is not audio (12300) is like a document with the same problem.
"""
