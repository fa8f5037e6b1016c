"""`forebay doctor`: checks of a configuration, its broker, its machine and a Forebay that runs by it."""
