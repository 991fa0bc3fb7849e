"""The job runtime that clusters stand on."""
