"""Pure machines that decide inside a job: they open no socket, start no thread and read no clock."""
