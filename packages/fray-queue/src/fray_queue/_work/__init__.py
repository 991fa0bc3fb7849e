"""Pools that work on a queue's items until they are stopped."""
