"""What starts workers on a machine, and what looks the machine over before that."""
