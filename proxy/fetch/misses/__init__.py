"""Miss fetches: Fetches of the partitions that memory cannot answer."""
