"""Processes of this host: how one is started, limited and measured, and the locks and ports that it holds.

The end of a process tree is `fray._jobs.process_tree`. Supervisors, guardians and backends use these.
"""
