"""The view of a job or a cluster: a live page, the page as one file, and a terminal screen."""
