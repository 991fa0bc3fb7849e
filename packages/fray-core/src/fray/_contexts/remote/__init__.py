"""A context over a remote engine: what its programs and its workers run."""
