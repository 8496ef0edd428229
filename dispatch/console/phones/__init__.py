"""The phones page, for development only: every simulated handset on one page, for who plays the technician.

It talks to the simulator's control API, which listens on this machine only; browsers ask us, and we ask it."""
