"""How daemons talk to the leader, and a trainer to its daemon."""
