"""How a source over HTTP is got into, as its table in ``config.toml`` says."""

import msgspec


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """The part of ``[[source]]`` that is about credentials and certificates.

    Attributes
    ----------
    username, password_file, password_env
        For basic authentication. Files of secrets are read anew at each round.
    bearer_file, bearer_env
        A token instead.
    ca_file
        Certificates to trust for https instead of the system's.
    verify
        False takes any certificate.
    """

    name: str
    username: str = ""
    password_file: str = ""
    password_env: str = ""
    bearer_file: str = ""
    bearer_env: str = ""
    ca_file: str = ""
    verify: bool = True

    def __post_init__(self) -> None:
        """Refuse ways to sign in that are none, or two."""
        password = bool(self.password_file or self.password_env)
        if bool(self.username) != password:
            msg = "username and password_file (or password_env) go together"
            raise ValueError(msg)
        if password and (self.bearer_file or self.bearer_env):
            msg = "either username and a password, or a bearer token, not both"
            raise ValueError(msg)
