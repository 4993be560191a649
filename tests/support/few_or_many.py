"""How many examples hypothesis draws: few among the default tests, more with the slow ones."""

from hypothesis import settings


def examples(few: int, many: int) -> settings:
    """Return settings with `few` examples by default, and `many` with `thorough` or `random`."""
    default = settings.get_profile("fixed").max_examples
    return settings(max_examples=few if settings().max_examples == default else many)
