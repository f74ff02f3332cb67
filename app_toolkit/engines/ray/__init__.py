"""The only place that imports Ray."""
