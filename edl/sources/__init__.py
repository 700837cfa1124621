"""Files as sources of samples: the list of files, the place of each record, and the records by number."""
