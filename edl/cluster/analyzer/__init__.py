"""What is known of a job's speed: models that are fitted, while it trains, to what it reports."""
