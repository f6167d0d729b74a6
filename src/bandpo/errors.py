"""What a user is told."""


class UserError(ValueError):
    """Something that the user wrote cannot work; the command line prints the message alone."""
