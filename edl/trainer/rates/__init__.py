"""Learning rates of a job whose batch changes."""
