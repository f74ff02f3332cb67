"""What becomes of requests when things go wrong: scenarios that hurt a running app_toolkit, and judge what they saw."""
