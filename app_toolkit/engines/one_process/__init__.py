"""Everything in one process, without an instance."""
