"""Admin: HTTP for operators, metrics, the arena's report, Forebay's own log."""
