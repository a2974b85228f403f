"""Pages of the site's own upkeep."""
