"""A job to look at: a page that lives, the same page as a file, the same in a terminal."""
