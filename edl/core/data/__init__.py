"""Who trains which samples."""
