"""The control plane: operations, revisions, releases, and how replica sets follow them.

Design: docs/design/rollout-and-traffic.md
"""
