"""Contracts that every backend passes, as classes of tests: `pip install fray-core[testing]`."""
