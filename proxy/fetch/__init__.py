"""Fetch requests."""
