"""The one command, leaseq: hands its words to the terminal edge."""
