"""References, dependencies, streams, the order of actor calls, scope and waiting: bookkeeping alone."""
