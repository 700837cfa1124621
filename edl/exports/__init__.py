"""Export of a job's record to other tools, TensorBoard and OpenTelemetry, by a process beside `edl run`."""
