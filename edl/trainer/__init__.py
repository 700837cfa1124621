"""The trainer's process: the user's script, its seat in the rings, its data, its rates."""
