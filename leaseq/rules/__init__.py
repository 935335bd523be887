"""Pure decisions: facts in, verdict out; no Django, no clock, no input or output."""
