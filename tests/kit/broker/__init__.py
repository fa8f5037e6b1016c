"""Real Kafka brokers for tests, demo and bench: fetched once, started as child processes, always cleaned up.

Owns the way from nothing to a listening broker. Knows nothing of Forebay's packages: it is to judge them.
"""
