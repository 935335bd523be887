"""Bounded passes: claim a batch, act, report; the network stands between transactions."""
