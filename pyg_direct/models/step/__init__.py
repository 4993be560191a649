"""Training steps that compute only the rows that the seeds depend on (`accelerate`)."""
