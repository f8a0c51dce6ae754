"""The category of all warnings of this package."""


class PruningWarning(UserWarning):
    """What a warning of this package is, so that it can be told from those of others.

    Example:
        >>> import warnings
        >>> warnings.filterwarnings("error", category=PruningWarning)  # in tests: a good fit is silent
        >>> warnings.filters.pop(0)[2].__name__
        'PruningWarning'
    """
