"""Workers as Pods of Kubernetes: what is asked of its API server, and the manifests of a cluster that runs there."""
