"""Decisions about checkpoints: when a job is saved, after which step, and whether that succeeds."""
