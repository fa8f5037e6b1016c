"""Configuration: its keys, and how they are read and checked. Knows no other room."""
