"""Listeners and what reports to them."""
