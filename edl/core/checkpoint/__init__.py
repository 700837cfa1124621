"""When a job is saved, after which step, and what becomes of it."""
