"""Traces: the jobs of a cluster in the formats of published traces, or in a plain CSV of a user's own."""
