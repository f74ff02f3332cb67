"""One running copy of the user's app behind a gate."""
