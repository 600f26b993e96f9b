"""The `headstart` command, also as `python -m headstart`."""

import signal


def main() -> int:
    """Run the command line; Ctrl-C ends it without a word while Python still imports."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:  # an import that it ends blames the package
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from headstart.app.cli.main import main as run

    signal.signal(signal.SIGINT, before)
    return run()


if __name__ == "__main__":  # the engine process imports this module too, and needs no command line
    raise SystemExit(main())
