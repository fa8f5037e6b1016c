"""Everything that tests and bench share: real brokers, a real Forebay before one, raw clients, frames, played sockets.

Bench imports this package and no other of `tests`; this package imports neither bench nor other tests.
"""
