"""What processes send each other: connections, the hop, frames, calls.

Design: docs/design/hop.md
"""
