"""`edl prove`: what edl promises, tried on the user's own machine, as figures and as a page."""
