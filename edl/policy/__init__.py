"""Choice of a job's size and batch: pure functions from measurements to a decision with its reason."""
