"""One file for each policy."""
