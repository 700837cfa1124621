"""What a worker's trainer decides: what it may train on, where it sits, when it moves."""
