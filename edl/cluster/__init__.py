"""Decide which of many elastic jobs on one cluster gets how many workers, and on which nodes. Pure."""
