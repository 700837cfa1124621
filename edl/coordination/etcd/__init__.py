"""The store port on etcd v3: its tree of nodes laid out in etcd's flat keys, over gRPC.

`store` is the port. Below it: `planning` and `layout` decide (pure), `session`, `watching` and `connection` act,
`messages` and `protobuf` are what etcd says. `server` is an etcd of the launcher's own.
"""
