"""The store port on etcd v3: its tree of nodes laid out in etcd's flat keys, over gRPC.

`store` is the port. Below it, `planning` and `layout` decide (pure), `session`, `watching` and `connection` act,
`messages` and `protobuf` are etcd's wire format. `server` is an etcd that a launcher starts for its own jobs.
"""
