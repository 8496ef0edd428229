"""The phones page, for development only: play the technician on simulated handsets.

The simulator's control API listens on this machine only, so browsers ask this page and it asks the simulator.
"""
