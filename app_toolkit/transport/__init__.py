"""The transport between callers and replicas: connections, internal header fields, and the wire format of calls."""
