"""The engine on Ray. Only this package imports Ray."""
