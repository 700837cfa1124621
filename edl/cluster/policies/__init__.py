"""The scheduling policies, one file for each."""
