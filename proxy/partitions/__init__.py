"""What Forebay knows of the broker's partitions, and which of their records are stored."""
