"""The leader's machine of a job: what happens goes in, a record and orders come out."""
