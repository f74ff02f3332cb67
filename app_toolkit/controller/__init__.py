"""The controller: reconciles the running replicas and proxies with the desired state."""
