"""Programs that run on the nodes of a job which brings its own Ray."""
