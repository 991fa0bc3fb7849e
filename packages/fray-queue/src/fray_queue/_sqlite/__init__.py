"""Queues in an SQLite file: one store, which `SqliteQueue` and the server both stand on."""
