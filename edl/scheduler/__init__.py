"""A cluster that runs jobs: the processes that carry out what `edl.cluster.queue` decides. docs/cluster.md."""
