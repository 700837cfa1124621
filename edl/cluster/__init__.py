"""Many elastic jobs on one cluster: which job gets how many workers, and where. Pure."""
