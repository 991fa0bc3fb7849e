"""On the head of the cluster: the driver of each job, which places its replicas and writes its state."""
