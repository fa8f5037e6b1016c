"""Forebay's own requests to the broker: leases, log tails, epochs, settings, verification."""
