"""Decisions of a worker's trainer: its data, its place, and when it moves."""
