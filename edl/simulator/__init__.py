"""A simulated cluster: traces of jobs, their true speeds, and the policies that schedule live jobs too."""
