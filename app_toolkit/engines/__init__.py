"""The worlds that the components run in."""
