"""Who waits behind whom, and who is refused. Requests in, decisions out; `now_s` is always an argument."""
