"""Where clients connect: connections, the request parser, TLS.

Design: docs/design/edge.md
"""
