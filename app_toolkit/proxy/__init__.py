"""The HTTP proxy, which runs on each node and forwards requests to replicas."""
