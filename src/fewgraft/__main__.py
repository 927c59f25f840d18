"""The `fewgraft` command, which is `python -m fewgraft` as well."""

import sys


def main() -> None:
    """Run the command; whoever interrupts it while it is still being loaded sees no traceback."""
    try:
        from fewgraft.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
