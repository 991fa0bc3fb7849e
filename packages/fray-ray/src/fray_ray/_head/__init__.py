"""On the head of the cluster: the driver of each job."""
