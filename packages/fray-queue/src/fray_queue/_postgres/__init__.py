"""A queue on PostgreSQL."""
