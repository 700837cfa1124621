"""The daemon's process: it acts for its trainer in the job, and may lead the job."""
