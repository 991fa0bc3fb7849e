"""What the queues on engines that others run (Redis, PostgreSQL) have in common."""
