"""Work that changes what runs: roll-out, stop, restart, reconcile, launch."""
