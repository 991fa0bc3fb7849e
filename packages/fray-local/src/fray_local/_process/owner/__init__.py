"""What runs in the process that made the context."""
