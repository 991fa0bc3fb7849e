"""What runs the calls of a context in this process: inline, in threads, in an actor's event loop."""
