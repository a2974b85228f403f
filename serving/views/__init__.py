"""Pages of what runs."""
