"""What may be configured, and how it is read and checked. Knows no other room."""
