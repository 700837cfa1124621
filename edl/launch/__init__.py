"""Start workers on a machine, and check the machine before that."""
