"""Training steps on the rows that the seeds depend on (`accelerate`)."""
