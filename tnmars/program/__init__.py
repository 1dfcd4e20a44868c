"""Programs: typed instructions, one table of what is known about each, and everything that reads it."""
