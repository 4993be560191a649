"""Rows that come from elsewhere: from other ranks, or from earlier batches (`reuse`)."""
