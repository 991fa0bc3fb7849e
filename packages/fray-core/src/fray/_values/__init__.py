"""Frozen values and small helpers that every room may use."""
