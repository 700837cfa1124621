"""What a trainer does with its leases: from them to the samples of each mini-batch."""
