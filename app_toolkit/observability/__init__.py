"""Logs, counts and event logs for operators.

Design: docs/design/observability.md
"""
