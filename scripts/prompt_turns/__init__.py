"""The task of `prompt_turns_figures.py`: an agent, a policy that obeys one of its prompts, and a reflection function."""
