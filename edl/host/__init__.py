"""What is so of this host and its processes, whichever of edl's they are."""
