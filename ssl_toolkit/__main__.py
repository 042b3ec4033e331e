"""``python -m ssl_toolkit``."""

from ssl_toolkit.commands import main

main()
