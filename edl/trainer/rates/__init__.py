"""The learning rates of a job whose batch changes."""
