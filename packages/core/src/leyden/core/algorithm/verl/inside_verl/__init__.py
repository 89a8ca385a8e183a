"""What runs in the processes of VERL: its trainer, its queue, and what makes its rollouts."""
