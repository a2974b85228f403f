"""The work itself: the site copied into a file, and put back from one."""
