"""Decides when a request may go to the broker: queues, quotas, disks."""
