"""Plain counters and the access log's runs; without decisions, without files or sockets."""
