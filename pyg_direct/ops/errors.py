"""Errors that both backends raise."""


def out_of_range(row: int, num_rows: int) -> IndexError:
    """Return the error of an id that a table has no row for."""
    return IndexError(
        f"Cannot gather row {row} of a tensor with {num_rows} rows. Did an attribute of the data "
        f"change its size, or a transform_sampler_output its ids?"
    )
