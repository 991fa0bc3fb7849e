"""The page for jobs and queues: HTML made here, a little JavaScript that keeps it fresh."""
