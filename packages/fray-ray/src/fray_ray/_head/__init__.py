"""On the head of the cluster: the scheduler, which places the replicas of jobs and writes their state."""
