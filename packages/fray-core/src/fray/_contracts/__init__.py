"""The protocols that backends answer; no machinery."""
