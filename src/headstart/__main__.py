"""`python -m headstart` is the `headstart` command."""

if __name__ == "__main__":  # the engine process imports this module too, and needs no command line
    from headstart.app.cli.main import main

    raise SystemExit(main())
