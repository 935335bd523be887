"""Imports the modules of this folder, so that Django registers them."""

from leaseq_admin.admin import findings, jobs, leases, money, providers

__all__ = ["findings", "jobs", "leases", "money", "providers"]
