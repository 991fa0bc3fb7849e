"""Tasks, streams and actors inside one process: what `InProcessContext` is made of."""
