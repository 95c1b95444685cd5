"""`python -m midwatch` is the command `midwatch`."""

from midwatch.cli.main import main

main()
