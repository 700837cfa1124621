"""How many workers a job is to have."""
