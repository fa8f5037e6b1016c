"""Plain counters and the access log's runs. Decides nothing, opens nothing."""
