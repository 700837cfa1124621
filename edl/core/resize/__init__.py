"""The size of a job: how many workers it is to have."""
