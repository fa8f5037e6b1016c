"""`forebay canary`: a producer and a consumer of Forebay's own, through Forebay and past it."""
