"""Courses: the progress of a job for a number of workers and a placement, by the tables of its trace."""
