"""Files as sources of samples: which there are, where each record lies, and the records at given numbers."""
