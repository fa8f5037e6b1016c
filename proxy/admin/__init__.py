"""What operators see: HTTP, metrics, the arena, Forebay's own log."""
