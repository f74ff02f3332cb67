"""What people look at: logs and the story."""
