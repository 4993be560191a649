"""Operations on large arrays that run on the host, whatever device makes the batches."""
