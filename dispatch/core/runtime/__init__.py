"""Provide loops, leader election, queues, RQ workers, the supervisor and the autoscaler."""
