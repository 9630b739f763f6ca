"""What `strand doctor` finds, and how it is repaired."""
