"""A queue of live jobs: what becomes of each, which worker is on which device, what a failure means. Pure."""
