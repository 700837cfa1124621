"""A cluster's HTTP interface: JSON, with a token. docs/cluster-http.md."""
