"""The switch from one ring to the next."""
