"""What a job's record is made into for other tools, by a process beside `edl run`: TensorBoard, OpenTelemetry."""
