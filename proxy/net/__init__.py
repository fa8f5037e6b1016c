"""Sockets, framing, order and backpressure of connections. Knows frames, and no API."""
