"""The lease rules that queues stand on."""
