#!/usr/bin/env python
"""Django entry; `demo` starts its own services first, so it runs before Django is set up."""

import os
import sys


def main() -> None:
    """Hand the command line to the demo or to Django."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    if sys.argv[1:2] == ["demo"]:
        from project.demo.main import main as demo

        sys.exit(demo(sys.argv[2:]))
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
