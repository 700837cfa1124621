"""What Prometheus reads of a daemon, and of the job where it leads it."""
