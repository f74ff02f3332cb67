"""Routers, which queue requests and assign them to replicas, and the handles that call deployments."""
