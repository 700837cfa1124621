"""Metrics for Prometheus: of a daemon, and of the job that it leads."""
