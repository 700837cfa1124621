"""What asks a job from outside: as `edl status` and a scheduler do."""
