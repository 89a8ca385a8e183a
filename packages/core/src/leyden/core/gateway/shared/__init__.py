"""State that several worker processes of one gateway share, in a private folder of their machine."""
