"""How long a test waits for what is to come about: far longer than that takes, so that no slow machine fails it."""

PATIENCE_S = 90.0
"""A process or a replica that starts, and a request that may wait for one."""
