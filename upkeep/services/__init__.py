"""What people and the clock ask for: watch, tell, forget, copy, restore."""
