"""The data of a job: which worker trains which samples."""
