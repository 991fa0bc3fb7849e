"""What clusters derive from, in the process that launches, lists, follows and stops jobs.

`base` is for any backend; `recorded_jobs` and `directory_cluster` are for those whose jobs have records.
"""
