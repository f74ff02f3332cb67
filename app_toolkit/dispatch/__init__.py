"""The registry of what is published: the routes, the replica sets, and the routers of those that a process uses."""
