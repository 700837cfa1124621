"""Models of a job's speed, fitted while the job trains to the step times that it reports."""
