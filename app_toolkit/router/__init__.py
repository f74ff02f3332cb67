"""Who waits for a replica, and which replica serves whom."""
