"""The registry of published routes and replica sets, and the dispatcher of one request or call."""
