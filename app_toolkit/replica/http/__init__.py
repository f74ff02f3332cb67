"""The HTTP server of a replica, for the connections of its callers."""
