"""The lease as its holder sees it: pure values and verdicts; no Django, no I/O."""
