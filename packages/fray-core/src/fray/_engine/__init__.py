"""References, dependencies, streams, actors and scope of a context."""
