"""On the nodes: the actor and the process supervisor of each replica, and the Ray that a gang starts."""
