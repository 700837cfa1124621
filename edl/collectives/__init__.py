"""The all-reduce ring: a port, and Horovod behind it."""
