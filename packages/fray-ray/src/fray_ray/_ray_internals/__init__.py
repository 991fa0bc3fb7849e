"""What is not Ray's public API: a function for each call, with the version of Ray that it was read in.

No other module of this package knows Ray's private modules, its private attributes or its dashboard's own
paths: a new version of Ray is read here, and tried by `tests/ray/test_ray_internals.py`: a test for each.
"""
