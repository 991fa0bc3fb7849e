"""A queue on Redis or Valkey."""
