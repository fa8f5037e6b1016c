"""`make demo`: a broker, Forebay and clients on this machine, what an operator would ask, and an audit.

Owns one run from nothing to the report, and that nothing of it stays behind but `.build/demo/<run>`. Must not
know Forebay's inside: it judges from the clients, the scrape and the access log.
"""
