"""The daemon's process: it speaks for its trainer, and may lead the job."""
