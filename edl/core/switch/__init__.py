"""From one ring to the next."""
