"""When may a miss go upstream? Samples and requests in, decisions out; `now_s` is always an argument."""
