"""Pages of what should run."""
