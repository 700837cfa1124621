"""What became of every sample, from what workers wrote down."""
