"""`python -m vkqueue`: the command line."""

from vkqueue.cli import main

main()
