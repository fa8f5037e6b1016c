"""Kafka's bytes to values and back.

Owns: framing, headers, Produce, Fetch, record batch headers, the cut of ApiVersions, and control messages.
Must not know: caches, sockets, tasks, clocks, logs; frames come in as arguments, values go out. Invariants: a
frame is bytes-like and includes Kafka's four-byte length; every offset in a result is an index into that
frame; what is malformed raises `BadFrame` and nothing else; only `control` imports kio.
"""
