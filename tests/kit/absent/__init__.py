"""Modules that a started Forebay is not to find, though the tests have them."""
