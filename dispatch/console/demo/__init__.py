"""The demo: two organizations with people, technicians and simulated phones, and a run of forms through the API.

Exists under the development flag only. `data` is what is loaded, `seed` loads it, `phones` says what each
simulated phone does, `run` submits `submissions.jsonl` as a client would and accounts for every line."""
