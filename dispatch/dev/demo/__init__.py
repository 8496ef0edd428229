"""The demo: two organizations with users, technicians and simulated phones, and a run of forms through the API.

Exists under the development flag only. `data` holds the demo data, and `seed` loads it. `phones` defines the
behavior of each simulated phone. `run` submits `submissions.jsonl` as a client would, and accounts for every line.
"""
