"""Coordination: what a job keeps in ZooKeeper, and how it elects a leader there. The only place that knows kazoo."""
