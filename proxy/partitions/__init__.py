"""The broker's partitions as Forebay knows them, and which of their records are stored."""
