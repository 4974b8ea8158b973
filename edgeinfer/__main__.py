"""``edgeinfer`` and ``python -m edgeinfer``. Imports nothing before Ctrl-C is guarded against."""

import sys


def main() -> None:
    try:
        from edgeinfer.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
