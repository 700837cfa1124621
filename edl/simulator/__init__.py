"""A cluster that is simulated: traces of jobs, their true speeds, and the policies that decide on live jobs too."""
