"""`manage.py` commands: up, demo, seed_demo, simulator_config."""
