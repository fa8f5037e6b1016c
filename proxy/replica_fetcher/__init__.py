"""Forebay's own requests: leases, tails, epochs, settings, verification."""
