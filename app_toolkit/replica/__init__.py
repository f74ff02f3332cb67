"""A replica: one running copy of the user's app behind admission control."""
