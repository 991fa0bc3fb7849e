"""Plugins, specs, and what is current."""
