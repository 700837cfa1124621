"""The queue of live jobs: their lives, which worker is on which device, how failures are handled. Pure."""
