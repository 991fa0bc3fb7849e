"""Tasks and actors on Ray: where a program uses a context, and inside the workers that run its calls."""
