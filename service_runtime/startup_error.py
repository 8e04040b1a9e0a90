"""Why a service cannot start."""


class StartupError(Exception):
    """A cause that the operator can mend, said in one line; `run_service` shows it without a traceback."""
