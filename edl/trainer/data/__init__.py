"""The way from a trainer's leases to the samples of each mini-batch."""
