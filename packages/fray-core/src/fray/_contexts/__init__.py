"""What contexts derive from their primitives."""
