"""Fault injection: scenarios that disturb a running app_toolkit, and measure how its requests fare."""
