"""``python -m edgeinfer``."""

from edgeinfer.cli import main

main()
