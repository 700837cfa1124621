"""Which worker trains which samples."""
