"""Facts about this host and its processes that several parts of edl need."""
