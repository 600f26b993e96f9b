"""The `headstart` command, also as `python -m headstart`."""

import signal
import sys


def main() -> int:
    """Run the command line; return the exit code.

    Ctrl-C ends it without a word while Python still imports; a package that is missing is named.
    """
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


if __name__ == "__main__":  # the engine process imports this module too, and needs no command line
    raise SystemExit(main())
