"""A chat over one WebSocket."""
