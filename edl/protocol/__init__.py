"""What is said: nouns and messages. Pure."""
