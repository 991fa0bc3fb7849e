"""What is to be run: requests as plans, their source and their environment. Made by the launcher.

A supervisor reads `plan`, `parts`, `values` and `sweep_plan`, which import little. A child of it builds the
environment (`environments`), where the job starts.
"""
