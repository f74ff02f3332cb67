"""The HTTP edge: one per node, passes bytes."""
