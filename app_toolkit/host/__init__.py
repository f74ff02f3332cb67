"""The life of a replica or proxy process, for every engine that starts processes."""
