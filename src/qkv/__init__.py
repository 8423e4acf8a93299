"""Attention you can build, see and prove."""
