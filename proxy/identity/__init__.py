"""Identity: principals of clients, and how Forebay signs in to the broker as one of them."""
