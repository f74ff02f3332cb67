"""Benchmarks: app_toolkit compared with bare FastAPI and with other servers. See `python -m benchmarks --help`."""
