"""Traces: the jobs of a cluster as others have published them, and a plain CSV of one's own."""
