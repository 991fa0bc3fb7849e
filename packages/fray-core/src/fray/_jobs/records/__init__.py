"""The record of a job on the disk: its files, its lock, its control pipe.

The launcher writes it first (`writing`), then the supervisor, last the guardian, which also deletes old
records (`housekeeping`, `pruning`). Any process that has the folder may read it: `record` for one job,
`index` and `watch` for lists.
"""
