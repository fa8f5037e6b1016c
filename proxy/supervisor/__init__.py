"""The process `forebay serve`: sockets, the worker's life, and pipes while no worker runs."""
