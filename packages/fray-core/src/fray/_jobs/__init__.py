"""The job runtime that clusters stand on.

The rules, which are pure: `planning` makes a plan of a request; `supervision` decides about a job,
`replica_rules` about each replica, `ranks` about their variables.
The processes: `guardian`; `supervisor`, which starts replicas by `replica_processes`; `runner` in the
replica; `process_tree` for the end of all of it; `sweep_coordinator`.
The record on the disk: `record`, `status_file`, `liveness`, `logs`, `usage_history`.
What clusters derive from: `clusters`, `recorded_jobs`, `directory_cluster`.
"""
