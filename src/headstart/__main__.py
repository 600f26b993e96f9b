"""The `headstart` command, also as `python -m headstart`."""

import os
import signal
import sys
from io import TextIOWrapper


def main() -> int:
    """Run the command line; return the exit code.

    Ctrl-C ends it without a word while Python still imports; a package that is missing is named.
    """
    _prepare_streams()
    # a launcher that ignores it makes every child's exit code, and so its end, unknown
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # an import that it ends blames the package
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from headstart.app.cli.main import main as run

        signal.signal(signal.SIGINT, before)
        return run()
    except ModuleNotFoundError as error:
        if not error.name or error.name.startswith("headstart"):
            raise
        print(
            f"headstart: error: the package {error.name} is not installed; install Headstart with "
            "its dependencies (pip install headstart, without --no-deps)",
            file=sys.stderr,
        )
        return 1


def _prepare_streams() -> None:
    """Open the standard streams that are closed, before a socket gets such a number and with it
    what libllama prints; what a terminal cannot show becomes a question mark.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode)  # noqa: SIM115  gets the lowest free number
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)
    if isinstance(sys.stdout, TextIOWrapper):  # a caller may have replaced it
        sys.stdout.reconfigure(errors="replace")


if __name__ == "__main__":  # the engine process imports this module too, and needs no command line
    raise SystemExit(main())
