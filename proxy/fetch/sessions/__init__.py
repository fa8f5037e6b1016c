"""Fetch sessions (KIP-227), as clients see them."""
