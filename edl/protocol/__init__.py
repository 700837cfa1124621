"""The nouns of a job, and the messages between its processes. Pure."""
