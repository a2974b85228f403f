"""Processes of ours on a host: start, recognise, watch, read the log of, and stop them."""
