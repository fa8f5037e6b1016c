"""Switches at run time: overrides over the live keys, kept by the supervisor for all of its processes."""
