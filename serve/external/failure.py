"""How asking a search tool elsewhere fails."""


class ExternalFailure(Exception):
    """What went wrong, for people; may hold the key, which whoever tells it takes out."""
