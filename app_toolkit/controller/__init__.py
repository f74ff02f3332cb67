"""The loop around the decisions."""
