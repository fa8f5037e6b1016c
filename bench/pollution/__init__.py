"""The lab: lagging consumers beside tailing ones on a slow disk, with and without Forebay, judged by bars.

Owns a run from an empty disk to the report, and that nothing of it stays behind but `.build/pollution/<run>`.
Must not know Forebay's inside: it judges from the clients, the scrape, the access log and the kernel's counters.
"""
