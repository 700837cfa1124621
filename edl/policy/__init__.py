"""What size and batch are good: pure functions from measurements to a decision with its reason."""
