"""What is decided inside a job: pure machines that open no socket, start no thread and read no clock."""
