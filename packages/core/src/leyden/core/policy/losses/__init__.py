"""Losses: pure functions of flat entries, one small file each. They load no torch: options are checked early."""
