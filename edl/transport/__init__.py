"""Communication between daemons and the leader, and between a trainer and its daemon."""
