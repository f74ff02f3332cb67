"""Logs, counts and event logs for operators."""
