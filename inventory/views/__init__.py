"""Pages of the inventory, one file for each subject."""
